// Light, dark, or as the system has it.

export type Theme = "system" | "light" | "dark";

const KEY = "dormouse-theme";
const NEXT: Record<Theme, Theme> = { system: "dark", dark: "light", light: "system" };

export function theme(): Theme {
  const kept = localStorage.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : "system";
}

export function apply(chosen: Theme): void {
  if (chosen === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = chosen;
}

export function nextTheme(): Theme {
  const chosen = NEXT[theme()];
  localStorage.setItem(KEY, chosen);
  apply(chosen);
  return chosen;
}
