// Items to what the page shows: turns of slices of entries, with overlays beside them. Pure.

import type { Branch, Generation, Item, OpenCall, Part, ThreadState } from "./api";

export interface Entry {
  // The item's place in what the thread shows, from 1.
  at: number;
  item: Item;
}

export interface Slice {
  key: string;
  woken: string;
  entries: Entry[];
}

export type Mark =
  | { kind: "turn"; turn: number; at_ms: number; key: string }
  | { kind: "slice"; slice: Slice; key: string }
  | { kind: "generation"; generation: Generation; key: string }
  | { kind: "hidden"; branch: Branch; key: string };

export interface Ending {
  outcome: string;
  at: number;
  at_ms: number;
}

// Results, and markers of an interruption, by the call that they end. The first one counts.
export function endings(entries: Entry[]): Map<string, Ending> {
  const found = new Map<string, Ending>();
  for (const { at, item } of entries) {
    const { kind, call_id, outcome } = item.item;
    if (!call_id || found.has(call_id)) continue;
    if (kind === "tool_result") found.set(call_id, { outcome: outcome ?? "ok", at, at_ms: item.created_at_ms });
    if (kind === "interrupt") found.set(call_id, { outcome: "interrupted", at, at_ms: item.created_at_ms });
  }
  return found;
}

export function calls(entries: Entry[]): Map<string, Entry> {
  const found = new Map<string, Entry>();
  for (const entry of entries) {
    const { kind, call_id } = entry.item.item;
    if (kind === "tool_call" && call_id) found.set(call_id, entry);
  }
  return found;
}

// What comes from outside wakes a slice; what a model or the runtime makes of it belongs to it.
function isInput(item: Item): boolean {
  return item.cause !== null || item.item.kind === "interrupt" || item.item.kind === "event";
}

function woken(entries: Entry[]): string {
  const names = new Map<string, number>();
  for (const { item } of entries) {
    if (!isInput(item)) break;
    const name = inputName(item);
    if (name) names.set(name, (names.get(name) ?? 0) + 1);
  }
  const told = [...names].map(([name, count]) => (count === 1 ? name : `${count} × ${name}`));
  const first = entries[0];
  if (told.length > 0) return `Slice, woken by ${told.join(" and ")}`;
  // What a child begins with is a copy.
  return first?.at === 1 && first.item.item.kind === "tool_call" ? "The call that made this thread" : "Slice, goes on";
}

function inputName(item: Item): string {
  switch (item.item.kind) {
    case "user":
      return item.item.synthetic_reason ? reasonName(item.item.synthetic_reason) : "a message";
    case "tool_result":
      return "a tool’s result";
    case "event":
      return reasonName(item.item.reason ?? "event");
    case "interrupt":
      return "";
    default:
      return item.item.kind;
  }
}

const REASONS: Record<string, string> = {
  compaction_meta: "a summary’s note",
  system_reminder: "a note",
  project_instructions: "project instructions",
  interjection: "an interjection",
  late_result: "a late result",
  omission_note: "a note",
  agent_message: "another agent’s message",
  parent_message: "its parent’s message",
  thread_report: "a child’s report",
  subscription_event: "an event",
  scheduler_fired: "a timer",
};

export function reasonName(reason: string): string {
  return REASONS[reason] ?? reason.replaceAll("_", " ");
}

export function slices(entries: Entry[]): Slice[] {
  const found: Slice[] = [];
  let before: Item | null = null;
  for (const entry of entries) {
    const begins = before === null || (isInput(entry.item) && !isInput(before));
    const last = found.at(-1);
    if (begins || !last) found.push({ key: `slice-${entry.at}`, woken: "", entries: [entry] });
    else last.entries.push(entry);
    before = entry.item;
  }
  for (const slice of found) slice.woken = woken(slice.entries);
  return found;
}

// Everything in order, from top to bottom. A slice that an overlay ends in is cut there.
export function marks(entries: Entry[], generations: Generation[], branches: Branch[]): Mark[] {
  const first = entries[0]?.at ?? 1;
  const last = entries.at(-1)?.at ?? 0;
  const behind = new Map<number, Mark[]>();
  const put = (at: number, mark: Mark) => {
    // An overlay of items that are not loaded stands in front of those that are.
    const place = Math.max(at, first - 1);
    if (at <= last) behind.set(place, [...(behind.get(place) ?? []), mark]);
  };
  for (const generation of generations) {
    if (generation.covers !== null) {
      put(generation.covers, { kind: "generation", generation, key: `g-${generation.epoch}-${generation.generation}` });
    }
  }
  for (const branch of branches) {
    if (!branch.current && branch.items > branch.shared) put(branch.shared, { kind: "hidden", branch, key: `b-${branch.epoch}` });
  }
  const found: Mark[] = [...(behind.get(first - 1) ?? [])];
  let turn: number | null = null;
  for (const slice of slices(entries)) {
    let rest: Slice = { ...slice, entries: [] };
    const flush = () => {
      if (rest.entries.length > 0) found.push({ kind: "slice", slice: rest, key: rest.key });
      // A turn may begin within a slice: markers of interrupted calls belong to the one before.
      rest = { ...slice, entries: [], key: `${rest.key}-`, woken: rest.entries.length > 0 ? "The same slice" : rest.woken };
    };
    for (const entry of slice.entries) {
      if (entry.item.turn !== turn) {
        flush();
        turn = entry.item.turn;
        found.push({ kind: "turn", turn, at_ms: entry.item.created_at_ms, key: `t-${turn}-${entry.at}` });
      }
      rest.entries.push(entry);
      const overlays = behind.get(entry.at);
      if (overlays) {
        flush();
        found.push(...overlays);
      }
    }
    flush();
  }
  return found;
}

// What requests hold of an item, if not all of it.
export function overlay(entry: Entry, state: ThreadState | null, covered: number): string | null {
  if (entry.item.left_out === "too_large") return "left out of requests: too large";
  if (entry.item.left_out) return "left out of requests: the provider refuses it";
  if (entry.at <= covered) return "summarised";
  if (!state || entry.item.item.kind !== "tool_result") return null;
  if (entry.item.turn < state.pruned.cleared_before) return "cleared in requests";
  if (entry.item.turn < state.pruned.shortened_before) return "shortened in requests";
  return null;
}

// What a thread is about whose name was made: its first item is the call that made it.
export function labelOf(kind: string, first: Item | null): string | null {
  if (kind === "compaction") return "Summary";
  if (first?.item.kind !== "tool_call") return null;
  try {
    const told: unknown = JSON.parse(first.item.arguments ?? "");
    const instructions = told && typeof told === "object" && "instructions" in told ? told.instructions : null;
    if (typeof instructions === "string" && instructions.trim()) return instructions.trim().replace(/\s+/g, " ").slice(0, 80);
  } catch {
    // Arguments are what a model wrote: they may be anything.
  }
  return kind === "event" ? "Event" : null;
}

export function partsText(parts: Part[] | undefined): string {
  return (parts ?? []).flatMap((part) => (part.type === "text" ? [part.text ?? ""] : [])).join("\n");
}

// JSON up to this length stays on its line.
const SHORT_JSON = 72;

// Line breaks and indents for JSON, around tokens that stay as they are: numbers of any length, any order, duplicates.
export function pretty(json: string): string {
  if (json.length <= SHORT_JSON) return json;
  try {
    JSON.parse(json);
  } catch {
    return json;
  }
  let out = "";
  let depth = 0;
  let quoted = false;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (let at = 0; at < json.length; at++) {
    const c = json[at] as string;
    if (quoted) {
      out += c;
      if (c === "\\") out += json[++at] ?? "";
      else if (c === '"') quoted = false;
    } else if (c === '"') {
      quoted = true;
      out += c;
    } else if (c === "{" || c === "[") {
      const close = c === "{" ? "}" : "]";
      const rest = json.slice(at + 1).trimStart();
      if (rest.startsWith(close)) {
        out += c + close;
        at = json.indexOf(close, at);
      } else {
        depth += 1;
        out += c + line();
      }
    } else if (c === "}" || c === "]") {
      depth -= 1;
      out += line() + c;
    } else if (c === ",") out += c + line();
    else if (c === ":") out += ": ";
    else if (!/\s/.test(c)) out += c;
  }
  return out;
}

export type Status = "closed" | "running" | "consent" | "waiting" | "asleep";

export function status(state: { closed: boolean; calls: OpenCall[]; run: ThreadState["run"] }, live: boolean): Status {
  if (state.closed) return "closed";
  if (state.calls.some((call) => call.waits_for === "consent")) return "consent";
  if (state.calls.some((call) => !call.parked)) return "waiting";
  if (live || state.run?.state === "running" || state.run?.state === "queued") return "running";
  return "asleep";
}

export const STATUS_NAMES: Record<Status, string> = {
  closed: "Closed",
  running: "Running",
  consent: "Waiting for approval",
  waiting: "Waiting for tools",
  asleep: "Asleep",
};
