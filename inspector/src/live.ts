// What a run shows while it goes on, through a published AG-UI client. Items are what counts: an entry here is a preview
// that gives way to its item.

import { HttpAgent, type BaseEvent } from "@ag-ui/client";
import { address, headers } from "./api";

export type LiveKind = "user" | "text" | "reasoning" | "call";

export interface Live {
  id: string;
  kind: LiveKind;
  text: string;
  name?: string;
  result?: string;
  done: boolean;
}

export interface Ending {
  failed: string | null;
}

interface Wire extends BaseEvent {
  messageId?: string;
  toolCallId?: string;
  toolCallName?: string;
  delta?: string;
  content?: string;
  message?: string;
  code?: string;
}

// One event more. Snapshots are left out: the items tell the same, and more.
export function show(entries: Live[], event: Wire): Live[] {
  const change = (id: string | undefined, kind: LiveKind, by: (entry: Live) => Live) =>
    entries.map((entry) => (entry.id === id && entry.kind === kind ? by(entry) : entry));
  const more = (delta = "") => (entry: Live) => ({ ...entry, text: entry.text + delta });
  const end = (entry: Live) => ({ ...entry, done: true });
  switch (event.type as string) {
    case "TEXT_MESSAGE_START":
      return [...entries, { id: event.messageId ?? "", kind: "text", text: "", done: false }];
    case "TEXT_MESSAGE_CONTENT":
      return change(event.messageId, "text", more(event.delta));
    case "TEXT_MESSAGE_END":
      return change(event.messageId, "text", end);
    case "REASONING_MESSAGE_START":
      return [...entries, { id: event.messageId ?? "", kind: "reasoning", text: "", done: false }];
    case "REASONING_MESSAGE_CONTENT":
      return change(event.messageId, "reasoning", more(event.delta));
    case "REASONING_MESSAGE_END":
      return change(event.messageId, "reasoning", end);
    case "TOOL_CALL_START":
      return [
        ...entries,
        { id: event.toolCallId ?? "", kind: "call", text: "", name: event.toolCallName ?? "", done: false },
      ];
    case "TOOL_CALL_ARGS":
      return change(event.toolCallId, "call", more(event.delta));
    case "TOOL_CALL_RESULT":
      return change(event.toolCallId, "call", (entry) => ({ ...entry, result: event.content ?? "", done: true }));
    default:
      return entries;
  }
}

export interface Following {
  ended: Promise<Ending>;
  stop(): void;
}

// Follows the run that is under way, or makes one of `said`.
export function follow(
  where: { agent: string; thread: string; said: { id: string; text: string } | null },
  onEvent: (event: Wire) => void,
): Following {
  const route = where.said ? "run" : "connect";
  const agent = new HttpAgent({
    url: address(`agui/agent/${encodeURIComponent(where.agent)}/${route}`),
    threadId: where.thread,
    headers: headers(),
  });
  if (where.said) agent.addMessage({ id: where.said.id, role: "user", content: where.said.text });
  let failed: string | null = null;
  let stopped = false;
  const run = agent.runAgent(
    // The page keeps no history: what it sends is new, and stands behind whatever is there.
    { runId: crypto.randomUUID(), forwardedProps: { dormouse: { mode: "append" } } },
    {
      onEvent: ({ event }) => {
        const wire = event as Wire;
        if ((wire.type as string) === "RUN_ERROR" && wire.code !== "abort") {
          failed = wire.message ?? "the run has failed";
        }
        if (!stopped) onEvent(wire);
      },
    },
  );
  const ended = run.then(
    () => ({ failed: stopped ? null : failed }),
    (error: unknown) => ({ failed: stopped ? null : error instanceof Error ? error.message : String(error) }),
  );
  return {
    ended,
    stop() {
      stopped = true;
      agent.abortRun();
    },
  };
}
