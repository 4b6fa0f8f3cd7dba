// The HTTP API of dormouse, as GET /openapi.json describes it: only what the page asks.

export type Kind = "root" | "child" | "event" | "compaction";

export interface Summary {
  thread_id: string;
  agent: string;
  created_at_ms: number;
  closed: boolean;
  head: number;
  pending: number;
  kind: Kind;
  root: string;
  parent: string | null;
  origin: string | null;
  forked_from: string | null;
  epoch: number;
}

export interface OpenCall {
  call_id: string;
  seq: number;
  name: string;
  parked: boolean;
  server: string | null;
  waits_for: "result" | "turn" | "consent";
}

export interface ThreadState extends Omit<Summary, "pending"> {
  version: string;
  pending: number;
  owner: string | null;
  turns: number;
  inherited: number;
  spans: { thread: string; epoch: number; from: number; to: number }[];
  calls: OpenCall[];
  run: { run_id: string; state: "queued" | "running" | "waiting" | "ended"; attempt: number; stopping: boolean } | null;
  unfinished: number;
  unsent: number;
  notices: string[];
  pruned: { shortened_before: number; cleared_before: number };
  compaction: {
    generation: number | null;
    failed_attempts: number;
    next_try_at_ms: number;
    failure: string | null;
  };
  usage: { input: number; output: number; cached: number } | null;
}

export interface Part {
  type: string;
  text?: string;
  data?: { type: string; value: string };
  media_type?: string;
}

// What is stored: a kind that this page does not know is shown as it is.
export interface Body {
  kind: string;
  text?: string;
  parts?: Part[];
  model?: string;
  stop_reason?: string | null;
  call_id?: string;
  name?: string;
  arguments?: string;
  outcome?: string;
  settled_by?: string;
  synthetic_reason?: string;
  author?: string;
  reason?: string;
  original_tool_name?: string;
  summary?: string;
  tool_type?: string;
  state?: unknown;
}

export interface Item {
  seq: number;
  id: string;
  turn: number;
  created_at_ms: number;
  user: string | null;
  epoch: number;
  opens_turn: boolean;
  cause: string | null;
  tokens: number;
  left_out: string | null;
  item: Body;
}

export interface Page {
  items: Item[];
  next: number | null;
  parked: number;
  inherited: number;
}

export interface Branch {
  epoch: number;
  current: boolean;
  items: number;
  shared: number;
  own: number;
  began_at_ms: number | null;
  ended_at_ms: number | null;
}

export interface Generation {
  thread_id: string;
  epoch: number;
  generation: number;
  covers: number | null;
  text: string;
  model: string;
  partial: boolean;
  source_tokens: number;
  tokens: number;
  created_at_ms: number;
}

export interface Choice {
  choice_id: string;
  prompt: string;
  choices: string[];
  default: number;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const TOKEN = "dormouse-token";

// Kept for this tab alone.
export function token(): string {
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function setToken(value: string): void {
  sessionStorage.setItem(TOKEN, value);
}

export function headers(): Record<string, string> {
  return token() ? { authorization: `Bearer ${token()}` } : {};
}

// Beside the page: a stage of a gateway may stand in front of both.
export function address(path: string): string {
  return new URL(path, new URL(".", location.href)).href;
}

async function ask<T>(path: string, init: RequestInit = {}): Promise<T> {
  let response: Response;
  try {
    response = await fetch(address(path), { ...init, headers: { ...headers(), ...init.headers } });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, "dormouse does not answer. Is `dormouse serve` still running?");
  }
  const body: unknown = await response.json().catch(() => null);
  if (response.ok) return body as T;
  const told = body && typeof body === "object" && "error" in body ? String(body.error) : response.statusText;
  throw new ApiError(response.status, told);
}

function post<T>(path: string, body: unknown): Promise<T> {
  return ask<T>(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });
}

const of = (thread: string) => `threads/${encodeURIComponent(thread)}`;
const MAX_PAGE = 200;

export const api = {
  threads: (signal?: AbortSignal) =>
    ask<{ threads: Summary[] }>(`threads?limit=${MAX_PAGE}`, signal ? { signal } : {}).then((answer) => answer.threads),

  relatives: (thread: string, which: "children" | "forks") =>
    ask<{ threads: Summary[]; next: string | null }>(`${of(thread)}/${which}?limit=${MAX_PAGE}`),

  state: (thread: string, signal: AbortSignal) => ask<ThreadState>(`${of(thread)}/state`, { signal }),

  // Items `from` to `to` of what the thread shows, as far as they are there.
  async items(thread: string, from: number, to: number, epoch: number | null, signal: AbortSignal): Promise<Item[]> {
    const items: Item[] = [];
    let after: number | null = from;
    while (after !== null && after < to) {
      const limit = Math.min(MAX_PAGE, to - after);
      const log: string = epoch === null ? "" : `&epoch=${epoch}`;
      const page: Page = await ask<Page>(`${of(thread)}?after=${after}&limit=${limit}${log}`, { signal });
      items.push(...page.items);
      after = page.next;
    }
    return items;
  },

  // A child begins with a copy of the call that made it.
  first: (thread: string) => ask<Page>(`${of(thread)}?limit=1`).then((page) => page.items[0] ?? null),

  branches: (thread: string, signal: AbortSignal) =>
    ask<{ branches: Branch[]; next: number | null }>(`${of(thread)}/branches`, { signal }).then((answer) => answer.branches),

  generations: (thread: string, signal: AbortSignal) =>
    ask<{ generations: Generation[]; next: number | null }>(`${of(thread)}/generations`, { signal }).then(
      (answer) => answer.generations,
    ),

  choices: (thread: string, signal: AbortSignal) =>
    ask<{ choices: Choice[] }>(`${of(thread)}/choices`, { signal }).then((answer) => answer.choices),

  choose: (thread: string, choice: string, selected: number) =>
    post<unknown>(`${of(thread)}/choices/${encodeURIComponent(choice)}`, { selected }),

  cancel: (thread: string) => post<unknown>(`${of(thread)}/cancel`, {}),

  stop: (agent: string, thread: string) =>
    post<{ stopped: boolean }>(`agui/agent/${encodeURIComponent(agent)}/stop/${encodeURIComponent(thread)}`, {}),

  agents: () =>
    ask<{ agents: Record<string, unknown> }>("agui/info").then((answer) => Object.keys(answer.agents)),
};
