// Times as people read them.

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });

export function clock(ms: number): string {
  return CLOCK.format(ms);
}

export function dateTime(ms: number): string {
  return `${DAY.format(ms)}, ${CLOCK.format(ms)}`;
}

export function iso(ms: number): string {
  return new Date(ms).toISOString();
}

export function lasting(ms: number): string {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1_000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d`;
}

export function ago(ms: number, now: number): string {
  const past = now - ms;
  if (past < 60_000) return "now";
  if (past < 3_600_000) return `${Math.floor(past / 60_000)} min`;
  if (past < 86_400_000) return `${Math.floor(past / 3_600_000)} h`;
  return `${Math.floor(past / 86_400_000)} d`;
}

export function count(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}
