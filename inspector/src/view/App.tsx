// The page: threads at the left, one of them in the middle, what is known of it at the right.

import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, api, type Summary } from "../api";
import { Feed, type View } from "../feed";
import { nextTheme, theme, type Theme } from "../theme";
import { count } from "../time";
import { labelOf, status } from "../timeline";
import { grow } from "../tree";
import { Composer } from "./Composer";
import { Details } from "./Details";
import { Help, NewThread, Token } from "./Dialogs";
import { Button, Chip, Icon, Mascot } from "./parts";
import { Timeline } from "./Timeline";
import { Tree } from "./Tree";

// Between two looks at the list.
const LIST_PAUSE_MS = 2_500;
// Threads whose children are asked for: in the list of an owner they are not.
const MAX_EXPANDED = 60;

interface Route {
  thread: string | null;
  log: number | null;
}

function readRoute(): Route {
  const [, kind, name, query] = /^#\/(threads)\/([^?]+)(?:\?(.*))?$/.exec(location.hash) ?? [];
  if (kind !== "threads" || !name) return { thread: null, log: null };
  const log = new URLSearchParams(query ?? "").get("log");
  try {
    return { thread: decodeURIComponent(name), log: log && /^\d{1,10}$/.test(log) ? Number(log) : null };
  } catch {
    return { thread: null, log: null };
  }
}

function goTo(thread: string, log: number | null = null): void {
  location.hash = `#/threads/${encodeURIComponent(thread)}${log === null ? "" : `?log=${log}`}`;
}

// Every second, for what says how long it has waited.
function useNow(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

interface List {
  threads: Summary[] | null;
  labels: Map<string, string>;
  error: ApiError | null;
}

// The list, and what comes of the threads in it, asked for once for each of their states.
function useThreads(signedIn: number): List & { look: () => Promise<void> } {
  const [list, setList] = useState<List>({ threads: null, labels: new Map(), error: null });
  const labels = useRef(new Map<string, string>());
  const known = useRef(new Map<string, { version: string; threads: Summary[] }>());
  const look = useCallback(async () => {
    try {
      const listed = await api.threads();
      const all = new Map(listed.map((thread) => [thread.thread_id, thread]));
      // The first look at many threads takes a while.
      setList((before) => ({ ...before, threads: before.threads ?? listed, error: null }));
      const queue = [...listed.slice(0, MAX_EXPANDED)];
      for (let at = 0; at < queue.length && at < 4 * MAX_EXPANDED; at++) {
        const { thread_id: name, head, epoch, closed } = queue[at] as Summary;
        const version = `${epoch}-${head}-${closed}`;
        let entry = known.current.get(name);
        if (entry?.version !== version) {
          entry = { version, threads: (await api.relatives(name, "children")).threads };
          known.current.set(name, entry);
        }
        for (const child of entry.threads) {
          if (all.has(child.thread_id)) continue;
          all.set(child.thread_id, child);
          queue.push(child);
        }
      }
      const threads = [...all.values()];
      setList((before) => ({ threads, labels: before.labels, error: null }));
      const nameless = threads.filter(({ parent, thread_id }) => parent !== null && !labels.current.has(thread_id));
      for (const { thread_id: name, kind } of nameless.slice(0, MAX_EXPANDED)) {
        labels.current.set(name, labelOf(kind, kind === "compaction" ? null : await api.first(name)) ?? "");
      }
      if (nameless.length > 0) {
        const told = new Map([...labels.current].filter(([, label]) => label !== ""));
        setList((before) => ({ ...before, labels: told }));
      }
    } catch (error) {
      const failure = error instanceof ApiError ? error : new ApiError(0, String(error));
      setList((before) => ({ ...before, error: failure }));
    }
  }, []);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    let ended = false;
    const poll = async () => {
      if (!document.hidden) await look();
      if (!ended) timer = setTimeout(() => void poll(), LIST_PAUSE_MS);
    };
    void poll();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [signedIn]);
  return { ...list, look };
}

function useFeed({ thread, log }: Route, agent: string, signedIn: number): [View | null, Feed | null] {
  const [view, setView] = useState<View | null>(null);
  const feed = useRef<Feed | null>(null);
  useEffect(() => {
    if (!thread) {
      setView(null);
      return;
    }
    const made = new Feed(thread, log, agent, setView);
    feed.current = made;
    setView(made.view);
    return () => made.close();
  }, [thread, log, signedIn]);
  return [view, feed.current];
}

export function App() {
  const [route, setRoute] = useState<Route>(readRoute);
  const [signedIn, setSignedIn] = useState(0);
  const [dialog, setDialog] = useState<"help" | "new" | null>(null);
  const [details, setDetails] = useState(true);
  const [filter, setFilter] = useState("");
  const [chosen, setChosen] = useState<Theme>(theme);
  const [agent, setAgent] = useState("default");
  const now = useNow();
  const list = useThreads(signedIn);
  const [view, feed] = useFeed(route, agent, signedIn);
  const nodes = useMemo(() => grow(list.threads ?? []), [list.threads]);

  useEffect(() => {
    const changed = () => setRoute(readRoute());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  useEffect(() => {
    document.title = route.thread ? `${route.thread} · dormouse` : "dormouse inspector";
  }, [route.thread]);
  // A thread that says something new may have made others.
  useEffect(() => void list.look(), [view?.state?.version]);
  useShortcuts({ setDialog, onTheme: () => setChosen(nextTheme()), onDetails: () => setDetails((shown) => !shown) }, dialog !== null);

  const error = list.error;
  if (error?.status === 401) return <Token key={signedIn} onDone={() => setSignedIn(signedIn + 1)} />;

  const relatives = (list.threads ?? []).flatMap((thread) =>
    thread.parent === route.thread
      ? [{ thread, relation: thread.kind === "compaction" ? "summary" : thread.kind }]
      : thread.forked_from === route.thread
        ? [{ thread, relation: "fork" }]
        : [],
  );
  const themeIcon = { system: "half", light: "sun", dark: "moon" } as const;
  return (
    <div class={`page ${details ? "" : "no-details"} ${route.thread ? "" : "no-thread"}`}>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        To the timeline
      </a>
      <nav class="side" aria-label="Threads">
        <header>
          <Mascot />
          <h1>
            dormouse <span>inspector</span>
          </h1>
          <Button bare icon="plus" label="New thread" hint="New thread (n)" onClick={() => setDialog("new")} />
        </header>
        <div class="filter">
          <input
            id="filter"
            type="search"
            placeholder="Filter threads"
            aria-label="Filter threads"
            value={filter}
            onInput={(event) => setFilter(event.currentTarget.value)}
          />
          <kbd>/</kbd>
        </div>
        <div class="scroller">
          {list.threads?.length === 0 && <p class="empty-list">No threads yet.</p>}
          {nodes.length > 0 && <Tree nodes={nodes} labels={list.labels} selected={route.thread} filter={filter} now={now} onSelect={goTo} />}
        </div>
        <footer>
          <span class="fine" role="status">
            {error ? "not connected" : list.threads ? count(list.threads.length, "thread") : "loading…"}
          </span>
          <Button bare icon={themeIcon[chosen]} label={`Theme: ${chosen}`} hint={`Theme: ${chosen} (d)`} onClick={() => setChosen(nextTheme())} />
          <Button bare icon="help" label="Keyboard shortcuts" hint="Keyboard shortcuts (?)" onClick={() => setDialog("help")} />
        </footer>
      </nav>
      <main id="main" tabIndex={-1}>
        {error && (
          <p class="banner" role="alert">
            {error.message} Trying again…
          </p>
        )}
        {view && feed && route.thread === view.thread ? (
          <ThreadPane
            view={view}
            feed={feed}
            agent={agent}
            relatives={relatives}
            labels={list.labels}
            now={now}
            showDetails={details}
            onDetails={() => setDetails(!details)}
          />
        ) : (
          <Welcome none={list.threads?.length === 0} onNew={() => setDialog("new")} />
        )}
      </main>
      {dialog === "help" && <Help onClose={() => setDialog(null)} />}
      {dialog === "new" && (
        <NewThread
          onClose={() => setDialog(null)}
          onMake={(thread, made) => {
            setAgent(made);
            setDialog(null);
            goTo(thread);
            setTimeout(() => document.getElementById("composer")?.focus(), 50);
          }}
        />
      )}
    </div>
  );
}

function Welcome({ none, onNew }: { none: boolean; onNew: () => void }) {
  return (
    <div class="welcome">
      <Mascot />
      <h2>{none ? "Nobody has said anything yet" : "Choose a thread"}</h2>
      {none ? (
        <>
          <p>Threads appear here as soon as they have their first message. Begin one in this page, or from a shell:</p>
          <pre class="code">dormouse send 'say good morning' --thread t1</pre>
        </>
      ) : (
        <p>
          Its timeline shows every item: what was said, calls out and back, interruptions, summaries, and what rewinds have hidden. Press <kbd>?</kbd> for
          shortcuts.
        </p>
      )}
      <Button kind="primary" icon="plus" label="New thread" onClick={onNew} />
    </div>
  );
}

interface PaneProps {
  view: View;
  feed: Feed;
  agent: string;
  relatives: { thread: Summary; relation: string }[];
  labels: Map<string, string>;
  now: number;
  showDetails: boolean;
  onDetails: () => void;
}

function ThreadPane({ view, feed, agent, relatives, labels, now, showDetails, onDetails }: PaneProps) {
  const { state, log } = view;
  const running = view.running || state?.run?.state === "running" || state?.run?.state === "queued";
  const waiting = (state?.calls ?? []).some((call) => !call.parked);
  const [problem, setProblem] = useState<string | null>(null);
  const attempt = (work: Promise<unknown>) => {
    setProblem(null);
    work.catch((error: unknown) => setProblem(error instanceof Error ? error.message : String(error)));
  };
  const isEmpty = view.loaded && view.entries.length === 0 && view.live.length === 0 && !state?.inherited;
  return (
    <>
      <header class="bar">
        <div class="names">
          <h2 title={view.thread}>{labels.get(view.thread) ?? view.thread}</h2>
          <p class="fine">
            {state ? `${state.agent} · ${count(view.total, "item")} · ${count(state.turns, "turn")}` : view.loaded ? `new · ${agent}` : "loading…"}
          </p>
        </div>
        {state && <Chip status={status(state, view.running)} />}
        <Button bare icon="note" label={showDetails ? "Hide details" : "Show details"} hint="Details (i)" onClick={onDetails} />
      </header>
      <div class="columns">
        <div class="center">
          {log !== null && (
            <p class="banner info">
              <Icon name="branch" /> As it stood in log {log}; a rewind has left it since.
              <Button label="Back to the current log" onClick={() => goTo(view.thread)} />
            </p>
          )}
          {view.error && (
            <p class="banner" role="alert">
              {view.error.message}
            </p>
          )}
          <div class="scroller" key={`${view.thread} ${log}`}>
            {isEmpty && !view.running ? (
              <div class="welcome small">
                <h2>Nothing is said here yet</h2>
                <p>The demo’s scripted model understands, for example:</p>
                <ul class="tries">
                  {["say good morning", 'call srv_slow {"ms": 3000}', "slow 40 zzz", 'call spawn_thread {"instructions": "say hello"}'].map((text) => (
                    <li key={text}>
                      <button type="button" onClick={() => feed.send(text)}>
                        {text}
                      </button>
                    </li>
                  ))}
                </ul>
              </div>
            ) : (
              <Timeline
                view={view}
                children={relatives.map(({ thread }) => thread)}
                labels={labels}
                now={now}
                onThread={goTo}
                onEarlier={() => attempt(feed.loadEarlier())}
                onChoose={(choice, selected) => attempt(feed.choose(choice, selected))}
              />
            )}
          </div>
          {problem && (
            <p class="banner" role="alert">
              {problem}
            </p>
          )}
          {log === null && (
            <Composer
              thread={view.thread}
              closed={state?.closed ?? false}
              running={running}
              waiting={waiting}
              onSend={(text) => feed.send(text)}
              onStop={() => attempt(feed.stop())}
            />
          )}
        </div>
        {showDetails && state && (
          <Details view={view} relatives={relatives} labels={labels} now={now} onThread={goTo} onLog={(chosen) => goTo(view.thread, chosen)} />
        )}
      </div>
    </>
  );
}

interface Actions {
  setDialog: (dialog: "help" | "new" | null) => void;
  onTheme: () => void;
  onDetails: () => void;
}

function focusEntry(card: HTMLElement | undefined): void {
  card?.focus();
  card?.scrollIntoView({ block: "nearest" });
}

function useShortcuts({ setDialog, onTheme, onDetails }: Actions, inDialog: boolean): void {
  useEffect(() => {
    const cards = () => [...document.querySelectorAll<HTMLElement>("[data-entry]")];
    const step = (by: number) => {
      const all = cards();
      const at = all.indexOf((document.activeElement as HTMLElement | null)?.closest<HTMLElement>("[data-entry]") as HTMLElement);
      const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
      focusEntry(all[next]);
    };
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const typing = target.matches("input, textarea, select");
      if (event.key === "Escape" && typing) target.blur();
      if (event.ctrlKey || event.metaKey || event.altKey || typing || inDialog) return;
      const actions: Record<string, () => void> = {
        j: () => step(1),
        k: () => step(-1),
        g: () => focusEntry(cards()[0]),
        G: () => focusEntry(cards().at(-1)),
        t: () => document.querySelector<HTMLElement>('[role="treeitem"][tabindex="0"]')?.focus(),
        "/": () => document.getElementById("filter")?.focus(),
        c: () => document.getElementById("composer")?.focus(),
        n: () => setDialog("new"),
        i: onDetails,
        d: onTheme,
        "?": () => setDialog("help"),
      };
      if (event.key === "Enter" && target.matches("[data-entry]")) {
        target.querySelector<HTMLElement>("[data-toggle]")?.click();
        return;
      }
      const action = actions[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    };
    const onClick = (event: MouseEvent) => {
      // Links within the page: the address names the thread, not the place in it.
      const link = (event.target as HTMLElement).closest<HTMLAnchorElement>("a[data-goto]");
      if (!link) return;
      event.preventDefault();
      focusEntry(document.getElementById(link.hash.slice(1)) ?? undefined);
    };
    addEventListener("keydown", onKey);
    addEventListener("click", onClick);
    return () => {
      removeEventListener("keydown", onKey);
      removeEventListener("click", onClick);
    };
  }, [inDialog, onDetails]);
}
