// A thread from top to bottom: turns, slices, what overlays say, and what is happening now.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, type Branch, type Generation, type Summary } from "../api";
import type { View } from "../feed";
import type { Live } from "../live";
import { calls, endings, marks, pretty, type Entry, type Mark, type Slice } from "../timeline";
import { clock, count } from "../time";
import { type Around, EntryCard } from "./Entry";
import { Button, Icon, Text, Time } from "./parts";

interface Props {
  view: View;
  children: Summary[];
  labels: Map<string, string>;
  now: number;
  onThread: (thread: string) => void;
  onEarlier: () => void;
  onChoose: (choice: string, selected: number) => void;
}

export function Timeline({ view, children, labels, now, onThread, onEarlier, onChoose }: Props) {
  const { entries, generations, branches, state } = view;
  const isCurrent = view.log === null;
  const shown = useMemo(
    () => marks(entries, isCurrent ? generations : [], isCurrent ? branches : []),
    [entries, generations, branches, isCurrent],
  );
  const around: Around = {
    state: isCurrent ? state : null,
    covered: isCurrent ? (generations[0]?.covers ?? 0) : 0,
    endings: useMemo(() => endings(entries), [entries]),
    calls: useMemo(() => calls(entries), [entries]),
    made: useMemo(() => new Map(children.flatMap((child) => (child.origin ? [[child.origin, child]] : []))), [children]),
    labels,
    now,
    prefix: "item-",
    onThread,
  };
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => {
    // One entry is in the tab order: the one that had the focus last.
    const cards = [...(list.current?.querySelectorAll<HTMLElement>("[data-entry]") ?? [])];
    if (cards.length > 0 && !cards.some((card) => card.tabIndex === 0)) (cards.at(-1) as HTMLElement).tabIndex = 0;
  });
  useStickToEnd(list, view);
  return (
    <ol
      class="timeline"
      aria-label="Timeline"
      ref={list}
      onFocusIn={(event) => {
        const card = (event.target as HTMLElement).closest<HTMLElement>("[data-entry]");
        if (!card) return;
        for (const other of list.current?.querySelectorAll<HTMLElement>('[data-entry][tabindex="0"]') ?? []) other.tabIndex = -1;
        card.tabIndex = 0;
      }}
    >
      {view.earlier > 0 && (
        <li class="earlier">
          <Button label={`Load earlier items · ${view.earlier.toLocaleString("en")} more`} onClick={onEarlier} />
        </li>
      )}
      {isCurrent && state && state.inherited > 0 && view.earlier === 0 && (
        <li class="inherited">
          <Icon name="branch" /> Begins with {count(state.inherited, "item")} of its parent’s conversation
        </li>
      )}
      {shown.map((mark) => (
        <MarkRow key={mark.key} mark={mark} around={around} thread={view.thread} />
      ))}
      {isCurrent && <Now view={view} onChoose={onChoose} />}
    </ol>
  );
}

// Whoever reads the end of a thread goes on reading its end.
function useStickToEnd(list: { current: HTMLElement | null }, view: View) {
  const stuck = useRef(true);
  const of = useRef("");
  useEffect(() => {
    const scroller = list.current?.closest<HTMLElement>(".scroller");
    if (!scroller) return;
    const look = () => {
      stuck.current = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
    };
    scroller.addEventListener("scroll", look, { passive: true });
    return () => scroller.removeEventListener("scroll", look);
  }, []);
  useLayoutEffect(() => {
    const scroller = list.current?.closest<HTMLElement>(".scroller");
    const thread = `${view.thread} ${view.log}`;
    const isNew = of.current !== thread && view.entries.length > 0;
    if (isNew) of.current = thread;
    if (scroller && (stuck.current || isNew)) scroller.scrollTop = scroller.scrollHeight;
  }, [view.entries, view.live, view.failed, view.choices]);
}

function MarkRow({ mark, around, thread }: { mark: Mark; around: Around; thread: string }) {
  switch (mark.kind) {
    case "turn":
      return (
        <li class="turn">
          <h3>Turn {mark.turn + 1}</h3>
          <Time ms={mark.at_ms} long />
        </li>
      );
    case "slice":
      return <SliceRow slice={mark.slice} around={around} />;
    case "generation":
      return <GenerationRow generation={mark.generation} />;
    case "hidden":
      return <HiddenRow branch={mark.branch} around={around} thread={thread} />;
  }
}

function SliceRow({ slice, around }: { slice: Slice; around: Around }) {
  const first = slice.entries[0] as Entry;
  const tokens = slice.entries.reduce((sum, { item }) => sum + item.tokens, 0);
  const cause = slice.entries.find(({ item }) => item.cause)?.item.cause;
  return (
    <li class="slice" data-slice>
      <p class="slice-head" title={cause ? `queue message ${cause}` : undefined}>
        <span class="dot" />
        {slice.woken}
        <span class="meta">
          {count(tokens, "token")}
          <Time ms={first.item.created_at_ms} />
        </span>
      </p>
      {slice.entries.map((entry) => (
        <EntryCard key={entry.at} entry={entry} around={around} />
      ))}
    </li>
  );
}

function GenerationRow({ generation }: { generation: Generation }) {
  const [open, setOpen] = useState(false);
  const { covers, source_tokens, tokens } = generation;
  return (
    <li class="generation" data-generation={generation.generation}>
      <div class="rule">
        <button type="button" class="summary" aria-expanded={open} data-toggle onClick={() => setOpen(!open)}>
          <Icon name="layers" />
          <b>Summary {generation.generation}</b>
          <span>
            stands for the {count(covers ?? 0, "item")} above in requests · {count(source_tokens, "token")} → {count(tokens, "token")}
          </span>
          <Icon name="chevron" />
        </button>
      </div>
      {open && (
        <div class="card">
          <Text text={generation.text} />
          <p class="fine">
            by <span class="mono">{generation.model}</span>, <Time ms={generation.created_at_ms} long />
            {generation.partial && " · a step was too large to be read whole"}
          </p>
        </div>
      )}
    </li>
  );
}

function HiddenRow({ branch, around, thread }: { branch: Branch; around: Around; thread: string }) {
  const [entries, setEntries] = useState<Entry[] | null>(null);
  const [open, setOpen] = useState(false);
  const [failed, setFailed] = useState<string | null>(null);
  const hidden = branch.items - branch.shared;
  const toggle = async () => {
    setOpen(!open);
    if (open || entries) return;
    try {
      const items = await api.items(thread, branch.shared, branch.items, branch.epoch, new AbortController().signal);
      setEntries(items.map((item, index) => ({ at: branch.shared + index + 1, item })));
    } catch (error) {
      setFailed(error instanceof Error ? error.message : String(error));
    }
  };
  const own: Around = {
    ...around,
    state: null,
    covered: 0,
    prefix: `log-${branch.epoch}-item-`,
    endings: endings(entries ?? []),
    calls: new Map([...around.calls, ...calls(entries ?? [])]),
  };
  return (
    <li class="hidden-branch" data-branch={branch.epoch}>
      <button type="button" class="summary" aria-expanded={open} data-toggle onClick={() => void toggle()}>
        <Icon name="branch" />
        <b>Rewound</b>
        <span>
          {count(hidden, "item")} of log {branch.epoch} superseded here
          {branch.ended_at_ms !== null && `, last used ${clock(branch.ended_at_ms)}`}
        </span>
        <Icon name="chevron" />
      </button>
      {open && (
        <div class="superseded">
          {failed && <p class="none">{failed}</p>}
          {!failed && !entries && <p class="none">Loading…</p>}
          {entries?.map((entry) => <EntryCard key={entry.at} entry={entry} around={own} />)}
        </div>
      )}
    </li>
  );
}

// What has no item yet.
function Now({ view, onChoose }: { view: View; onChoose: (choice: string, selected: number) => void }) {
  const { live, running, failed, choices, state } = view;
  const writes = live.some((one) => one.kind !== "user" && !one.done);
  const works = running && !writes && (state?.calls ?? []).length === 0;
  return (
    <>
      {live.length > 0 && (
        <li class="slice live" data-live>
          <p class="slice-head">
            <span class="dot pulse" />
            Now
          </p>
          {live.map((one) => (
            <LiveCard key={`${one.kind}-${one.id}`} live={one} />
          ))}
        </li>
      )}
      {works && (
        <li class="working" role="status">
          <span class="dots">
            <i />
            <i />
            <i />
          </span>
          Working…
        </li>
      )}
      {choices.map((choice) => (
        <li key={choice.choice_id} class="choice" role="group" aria-label="Question">
          <p>
            <Icon name="help" /> {choice.prompt}
          </p>
          <div class="buttons">
            {choice.choices.map((answer, index) => (
              <Button
                key={answer}
                label={answer}
                kind={index === choice.default ? "" : "primary"}
                onClick={() => onChoose(choice.choice_id, index)}
              />
            ))}
          </div>
        </li>
      ))}
      {(state?.notices ?? []).map((notice) => (
        <li key={notice} class="notice">
          <Icon name="note" /> Told to the user: {notice}
        </li>
      ))}
      {failed && !(state?.notices ?? []).includes(failed) && (
        <li class="notice bad" role="alert">
          <Icon name="bolt" /> {failed}
        </li>
      )}
    </>
  );
}

function LiveCard({ live }: { live: Live }) {
  const title = { user: "You", text: "Agent", reasoning: "Reasoning", call: `Calls ${live.name ?? ""}` }[live.kind];
  const icon = { user: "user", text: "agent", reasoning: "think", call: "out" } as const;
  const kind = { user: "user", text: "assistant", reasoning: "reasoning", call: "call" }[live.kind];
  return (
    <article class={`entry ${kind}`} aria-label={`${title}, under way`} data-live-kind={live.kind}>
      <header>
        <span class="glyph">
          <Icon name={icon[live.kind]} />
        </span>
        <span class="title">{title}</span>
        {!live.done && <span class="tag waiting">{live.kind === "call" ? "out" : "writing"}</span>}
      </header>
      {live.kind === "call" ? (
        <Text code text={pretty(live.text)} none="no arguments" />
      ) : (
        <div class={`prose ${live.done ? "" : "caret"}`}>{live.text}</div>
      )}
    </article>
  );
}
