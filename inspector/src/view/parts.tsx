// Small pieces that everything uses.

import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import type { Status } from "../timeline";
import { STATUS_NAMES } from "../timeline";
import { dateTime, clock, iso } from "../time";

const PATHS = {
  user: "M8 8a2.75 2.75 0 1 0 0-5.5A2.75 2.75 0 0 0 8 8Zm-5 5.5c.5-2.4 2.5-3.75 5-3.75s4.5 1.35 5 3.75",
  agent: "M3.5 5.5h9v7h-9zM8 5.5V3M6.25 8.5v1M9.75 8.5v1",
  out: "M3 8h9M8.5 4.5 12 8l-3.5 3.5",
  back: "M13 8H4M7.5 4.5 4 8l3.5 3.5",
  think: "M8 2.5a4 4 0 0 0-2.25 7.3v1.7h4.5V9.8A4 4 0 0 0 8 2.5ZM6.25 13.5h3.5",
  bolt: "M9 2 4 9h3.5L7 14l5-7H8.5z",
  event: "M8 2.5a3.5 3.5 0 0 0-3.5 3.5v2.5L3 11h10l-1.5-2.5V6A3.5 3.5 0 0 0 8 2.5ZM6.5 13h3",
  note: "M4 2.5h8v11H4zM6 5.5h4M6 8h4M6 10.5h2",
  layers: "m8 2.5 5.5 3L8 8.5l-5.5-3zM2.5 8.5 8 11.5l5.5-3M2.5 11 8 14l5.5-3",
  branch: "M4.5 5.5v5M4.5 5.5a1.25 1.25 0 1 0 0-2.5 1.25 1.25 0 0 0 0 2.5ZM4.5 13a1.25 1.25 0 1 0 0-2.5 1.25 1.25 0 0 0 0 2.5ZM11.5 6.5a1.25 1.25 0 1 0 0-2.5 1.25 1.25 0 0 0 0 2.5Zm0 0c0 2.5-2 3-7 3.5",
  thread: "M2.5 4h11v7h-6l-3 2.5V11h-2z",
  chevron: "m6 4 4 4-4 4",
  plus: "M8 3.5v9M3.5 8h9",
  stop: "M4.5 4.5h7v7h-7z",
  send: "M8 13V3.5M4 7.25 8 3.25l4 4",
  moon: "M12.5 9.5A5 5 0 0 1 6.5 3.5a5 5 0 1 0 6 6Z",
  sun: "M8 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM8 1.75v1.5M8 12.75v1.5M1.75 8h1.5M12.75 8h1.5M3.6 3.6l1 1M11.4 11.4l1 1M12.4 3.6l-1 1M4.6 11.4l-1 1",
  half: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  help: "M6 6.25a2 2 0 1 1 2.75 1.85c-.5.2-.75.55-.75 1.15M8 11.5v.25M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12Z",
  copy: "M5.5 5.5V3h7.5v7.5h-2.5M3 5.5h7.5V13H3z",
  check: "m3.5 8.5 3 3 6-7",
  close: "m4 4 8 8M12 4l-8 8",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Mascot() {
  return (
    <svg class="mascot" viewBox="0 0 32 32" aria-hidden="true">
      <path class="body" d="M5 19c0-7 5-11 11-11s11 4 11 10-4 8-11 8S5 24 5 19Z" />
      <circle class="ear" cx="9" cy="9" r="3.5" />
      <path class="line" d="M10.5 18.5c.9 1 2.1 1 3 0M20 25.5c5 .5 8-1.500 8.500-5.500" />
      <circle class="nose" cx="5.500" cy="19" r="1.250" />
    </svg>
  );
}

export function Chip({ status }: { status: Status }) {
  return (
    <span class={`chip ${status}`}>
      <i />
      {STATUS_NAMES[status]}
    </span>
  );
}

export function Time({ ms, long = false }: { ms: number; long?: boolean }) {
  return (
    <time dateTime={iso(ms)} title={dateTime(ms)}>
      {long ? dateTime(ms) : clock(ms)}
    </time>
  );
}

export function Button(props: {
  onClick: () => void;
  label: string;
  icon?: IconName;
  kind?: string;
  bare?: boolean;
  disabled?: boolean;
  hint?: string;
}) {
  const { onClick, label, icon, kind = "", bare = false, disabled = false, hint } = props;
  return (
    <button
      type="button"
      class={`button ${kind} ${bare ? "bare" : ""}`}
      onClick={onClick}
      disabled={disabled}
      title={hint ?? (bare ? label : undefined)}
      aria-label={bare ? label : undefined}
    >
      {icon && <Icon name={icon} />}
      {!bare && label}
    </button>
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text).catch(() => undefined);
    setDone(true);
    setTimeout(() => setDone(false), 1_500);
  };
  return <Button bare kind="small" icon={done ? "check" : "copy"} label={done ? "Copied" : label} onClick={() => void copy()} />;
}

// What is longer is folded.
const LONG_CHARS = 900;
const LONG_LINES = 14;

export function isLong(text: string): boolean {
  return text.length > LONG_CHARS || text.split("\n", LONG_LINES + 1).length > LONG_LINES;
}

// A text of any length; a long one is folded until somebody wants it.
export function Text({ text, code = false, none = "no text" }: { text: string; code?: boolean; none?: string }) {
  const [open, setOpen] = useState(false);
  const id = useId();
  if (text.trim() === "") return <p class="none">{none}</p>;
  const long = isLong(text);
  const folded = long && !open;
  const Tag = code ? "pre" : "div";
  return (
    <div class="text">
      <Tag id={id} class={`${code ? "code" : "prose"} ${folded ? "folded" : ""}`}>
        {text}
      </Tag>
      {long && (
        <button type="button" class="more" aria-expanded={open} aria-controls={id} data-toggle onClick={() => setOpen(!open)}>
          {open ? "Show less" : `Show all · ${text.length.toLocaleString("en")} characters`}
        </button>
      )}
    </div>
  );
}

export function Fold({ summary, hide, children }: { summary: string; hide: string; children: ComponentChildren }) {
  const [shown, setShown] = useState(false);
  const id = useId();
  return (
    <div class="fold">
      <button type="button" class="summary" aria-expanded={shown} aria-controls={id} data-toggle onClick={() => setShown(!shown)}>
        <Icon name="chevron" />
        <span class="line">{shown ? hide : summary}</span>
      </button>
      {shown && <div id={id}>{children}</div>}
    </div>
  );
}
