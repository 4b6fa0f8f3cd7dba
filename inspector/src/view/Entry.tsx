// One item of a thread, as a card of the timeline.

import type { ComponentChildren } from "preact";
import type { Part, Summary, ThreadState } from "../api";
import { type Ending, type Entry, overlay, partsText, pretty, reasonName } from "../timeline";
import { count, lasting } from "../time";
import { Fold, Icon, type IconName, Text, Time } from "./parts";

export interface Around {
  state: ThreadState | null;
  // Items that the newest summary stands for.
  covered: number;
  endings: Map<string, Ending>;
  calls: Map<string, Entry>;
  // Threads that calls have made.
  made: Map<string, Summary>;
  labels: Map<string, string>;
  now: number;
  prefix: string;
  onThread: (thread: string) => void;
}

const OUTCOMES: Record<string, [string, string]> = {
  ok: ["Result", "good"],
  error: ["Error", "bad"],
  interrupted: ["Interrupted", "warn"],
  halted: ["Stopped", "warn"],
  lost: ["Result lost", "bad"],
  refused: ["Not permitted", "bad"],
  timed_out: ["Timed out", "bad"],
  truncated: ["Cut off, not run", "warn"],
};

function outcomeOf(outcome: string): [string, string] {
  return OUTCOMES[outcome] ?? [outcome, "warn"];
}

interface CardProps {
  kind: string;
  icon: IconName;
  title: ComponentChildren;
  label: string;
  aside?: ComponentChildren;
  entry: Entry;
  around: Around;
  children?: ComponentChildren;
}

function Card({ kind, icon, title, label, aside, entry, around, children }: CardProps) {
  const told = overlay(entry, around.state, around.covered);
  return (
    <article
      id={`${around.prefix}${entry.at}`}
      class={`entry ${kind} ${told === "summarised" ? "summarised" : ""}`}
      tabIndex={-1}
      data-entry={entry.at}
      data-kind={entry.item.item.kind}
      aria-label={`${label}, item ${entry.at}${told ? `, ${told}` : ""}`}
    >
      <header>
        <span class="glyph">
          <Icon name={icon} />
        </span>
        <span class="title">{title}</span>
        {aside}
        {told && told !== "summarised" && <span class="tag overlay">{told}</span>}
        <span class="meta">
          <span title={`item ${entry.item.seq} of log ${entry.item.epoch}; about ${count(entry.item.tokens, "token")}`}>{entry.item.id}</span>
          <Time ms={entry.item.created_at_ms} />
        </span>
      </header>
      {children}
    </article>
  );
}

// Of a text that is folded to one line, what is put into it at most.
const LINE_CHARS = 200;

// Types that a browser draws; anything else is named.
const DRAWN = /^(image\/)?(png|jpe?g|gif|webp)$/i;

function Images({ parts }: { parts: Part[] | undefined }) {
  const others = (parts ?? []).filter((part) => part.type !== "text");
  if (others.length === 0) return null;
  return (
    <div class="images">
      {others.map((part, index) => {
        const type = part.media_type ?? "";
        if (part.type === "image" && part.data?.type === "base64" && DRAWN.test(type)) {
          const full = type.includes("/") ? type : `image/${type}`;
          return <img key={index} alt={`image ${index + 1}`} src={`data:${full};base64,${part.data.value}`} />;
        }
        const name = part.type === "image" ? `image ${type || "of unknown type"}` : `content of kind ${part.type}`;
        return (
          <span key={index} class="tag">
            {name}
          </span>
        );
      })}
    </div>
  );
}

export function EntryCard({ entry, around }: { entry: Entry; around: Around }) {
  const { item } = entry.item;
  switch (item.kind) {
    case "user": {
      const text = partsText(item.parts);
      if (item.synthetic_reason) {
        const name = reasonName(item.synthetic_reason);
        return (
          <Card kind="note" icon="note" title={`Note: ${name}`} label={`Note, ${name}`} entry={entry} around={around}>
            <Text text={text} />
          </Card>
        );
      }
      const who = item.author ?? entry.item.user ?? "User";
      return (
        <Card kind="user" icon="user" title={who} label={`Message of ${who}`} entry={entry} around={around}>
          <Text text={text} none={(item.parts ?? []).length > 0 ? "" : "no text"} />
          <Images parts={item.parts} />
        </Card>
      );
    }
    case "assistant": {
      const stop = item.stop_reason;
      const odd = stop && !["end_turn", "tool_use"].includes(stop) ? <span class="tag warn">ended: {stop}</span> : undefined;
      const aside = (
        <>
          <span class="tag">{item.model}</span>
          {odd}
        </>
      );
      return (
        <Card kind="assistant" icon="agent" title="Agent" label="Answer of the agent" aside={aside} entry={entry} around={around}>
          <Text text={item.text ?? ""} />
        </Card>
      );
    }
    case "reasoning":
      return (
        <Card kind="reasoning" icon="think" title="Reasoning" label="Reasoning" entry={entry} around={around}>
          {(item.text ?? "").trim() === "" ? (
            <p class="none">not readable: the provider keeps it sealed</p>
          ) : (
            <Fold summary={(item.text ?? "").slice(0, LINE_CHARS)} hide="Hide">
              <Text text={item.text ?? ""} />
            </Fold>
          )}
        </Card>
      );
    case "tool_call":
      return <CallCard entry={entry} around={around} />;
    case "tool_result": {
      const [name, tone] = outcomeOf(item.outcome ?? "ok");
      const call = around.calls.get(item.call_id ?? "");
      const tool = call?.item.item.name;
      const took = call ? lasting(entry.item.created_at_ms - call.item.created_at_ms) : null;
      const title = (
        <>
          {name}
          {tool && (
            <>
              {" of "}
              <a class="mono" href={`#${around.prefix}${call.at}`} data-goto={call.at}>
                {tool}
              </a>
            </>
          )}
        </>
      );
      const aside = (
        <>
          {took && <span class="tag">after {took}</span>}
          {item.settled_by === "runtime" && <span class="tag">settled by dormouse</span>}
        </>
      );
      const text = partsText(item.parts);
      return (
        <Card kind={`result ${tone}`} icon="back" title={title} label={`${name} of ${tool ?? "a call"}`} aside={aside} entry={entry} around={around}>
          <Text text={pretty(text)} code none="no output" />
          <Images parts={item.parts} />
        </Card>
      );
    }
    case "interrupt": {
      const call = around.calls.get(item.call_id ?? "");
      const tool = call?.item.item.name ?? "a call";
      const title = (
        <>
          Interrupted <span class="mono">{tool}</span>: the user spoke before its result came
        </>
      );
      return <Card kind="interrupt" icon="bolt" title={title} label={`Interrupt of ${tool}`} entry={entry} around={around} />;
    }
    case "event": {
      const name = reasonName(item.reason ?? "event");
      const title = (
        <>
          Event: {name}
          {item.original_tool_name && (
            <>
              {" of "}
              <span class="mono">{item.original_tool_name}</span>
            </>
          )}
        </>
      );
      return (
        <Card kind="event" icon="event" title={title} label={`Event, ${name}`} entry={entry} around={around}>
          <Text text={pretty(partsText(item.parts))} />
          <Images parts={item.parts} />
        </Card>
      );
    }
    case "system":
      return (
        <Card kind="note" icon="note" title="System" label="System entry" entry={entry} around={around}>
          <Text text={item.text ?? ""} />
        </Card>
      );
    case "state":
      return (
        <Card kind="note" icon="note" title="State" label="State shared with the application" entry={entry} around={around}>
          <Fold summary="What the application and the agent share from here on" hide="Hide">
            <Text code text={JSON.stringify(item.state, null, 2)} />
          </Fold>
        </Card>
      );
    case "backend_tool_call":
      return (
        <Card kind="call" icon="out" title={<span class="mono">{item.tool_type}</span>} label="Tool of the provider" entry={entry} around={around}>
          <Text text={item.summary ?? ""} />
        </Card>
      );
    default:
      return (
        <Card kind="note" icon="note" title={`Unknown kind: ${item.kind}`} label={`Item of unknown kind ${item.kind}`} entry={entry} around={around}>
          <Fold summary="As it is stored" hide="Hide">
            <Text code text={pretty(JSON.stringify(item))} />
          </Fold>
        </Card>
      );
  }
}

function CallCard({ entry, around }: { entry: Entry; around: Around }) {
  const { item } = entry.item;
  const id = item.call_id ?? "";
  const ending = around.endings.get(id);
  const open = around.state?.calls.find((call) => call.call_id === id);
  const child = around.made.get(id);
  const args = pretty(item.arguments ?? "");
  const name = item.name ?? "";
  return (
    <Card
      kind="call"
      icon="out"
      title={
        <>
          Calls <b class="mono">{name}</b>
        </>
      }
      label={`Call of ${name}`}
      aside={<CallState ending={ending} open={open} since={entry.item.created_at_ms} now={around.now} />}
      entry={entry}
      around={around}
    >
      {args.trim() === "" ? <p class="none">no arguments</p> : <Text text={args} code />}
      {child && (
        <button type="button" class="link" onClick={() => around.onThread(child.thread_id)}>
          <Icon name="agent" /> Child thread: {around.labels.get(child.thread_id) ?? child.thread_id}
        </button>
      )}
    </Card>
  );
}

function CallState(props: {
  ending: Ending | undefined;
  open: ThreadState["calls"][number] | undefined;
  since: number;
  now: number;
}) {
  const { ending, open, since, now } = props;
  if (open && !ending) {
    if (open.parked) return <span class="tag good">result is in, waits for the others</span>;
    const what = { result: "out", turn: "waits for its turn", consent: "waits for approval" }[open.waits_for];
    return (
      <span class="tag waiting" role="timer">
        <i class="pulse" />
        {what} for {lasting(now - since)}
      </span>
    );
  }
  if (!ending) return <span class="tag">no result</span>;
  const [name, tone] = outcomeOf(ending.outcome);
  return (
    <span class={`tag ${tone}`}>
      {ending.outcome === "ok" ? "back" : name.toLowerCase()} after {lasting(ending.at_ms - since)}
    </span>
  );
}
