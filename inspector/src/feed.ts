// One thread, kept up to date: its state is asked for again and again, its items only when the state says that there are
// more, and a run that is under way is followed as it streams.

import { ApiError, api, type Branch, type Choice, type Generation, type ThreadState } from "./api";
import { type Following, type Live, follow, show } from "./live";
import { type Entry, partsText } from "./timeline";

// Between two looks, and when nobody looks at the page.
const PAUSE_MS = 1_000;
const HIDDEN_PAUSE_MS = 10_000;
// Entries that are loaded at once, from the end.
export const WINDOW = 200;

export interface View {
  thread: string;
  // The log that is shown, if it is not the current one.
  log: number | null;
  loaded: boolean;
  state: ThreadState | null;
  entries: Entry[];
  // Items of the thread, and how many in front are not loaded.
  total: number;
  earlier: number;
  branches: Branch[];
  generations: Generation[];
  choices: Choice[];
  live: Live[];
  running: boolean;
  // Why the last look, the last run failed.
  error: ApiError | null;
  failed: string | null;
}

export class Feed {
  view: View;
  private readonly abort = new AbortController();
  private following: Following | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private version: string | null = null;
  // What was there when the run began: what it makes stands behind.
  private began = 0;
  private looking: Promise<void> | null = null;

  constructor(
    thread: string,
    log: number | null,
    private agent: string,
    private readonly changed: (view: View) => void,
  ) {
    this.view = {
      thread,
      log,
      loaded: false,
      state: null,
      entries: [],
      total: 0,
      earlier: 0,
      branches: [],
      generations: [],
      choices: [],
      live: [],
      running: false,
      error: null,
      failed: null,
    };
    void this.poll();
  }

  close(): void {
    this.abort.abort();
    clearTimeout(this.timer);
    this.following?.stop();
  }

  private set(change: Partial<View>): void {
    if (this.abort.signal.aborted) return;
    this.view = { ...this.view, ...change };
    this.changed(this.view);
  }

  private async poll(): Promise<void> {
    await this.look();
    if (this.abort.signal.aborted) return;
    this.timer = setTimeout(() => void this.poll(), document.hidden ? HIDDEN_PAUSE_MS : PAUSE_MS);
  }

  // One look at a time; who asks meanwhile waits for it and for one of their own.
  look(): Promise<void> {
    const next = (this.looking ?? Promise.resolve()).then(() => this.lookOnce());
    this.looking = next;
    return next;
  }

  private async lookOnce(): Promise<void> {
    const { signal } = this.abort;
    try {
      const state = await api.state(this.view.thread, signal);
      this.agent = state.agent;
      if (state.version !== this.version) {
        await this.load(state, signal);
        this.version = state.version;
      } else {
        this.set({ state, error: null, loaded: true });
      }
      if (state.run && !this.following && this.view.log === null) this.attach(null);
    } catch (error) {
      if (signal.aborted) return;
      const failure = error instanceof ApiError ? error : new ApiError(0, String(error));
      // A thread begins with its first message.
      if (failure.status === 404) this.set({ loaded: true, state: null, error: null });
      else this.set({ loaded: true, error: failure });
    }
  }

  private async load(state: ThreadState, signal: AbortSignal): Promise<void> {
    const { thread, log } = this.view;
    const before = this.view.state;
    const branches =
      before?.epoch === state.epoch ? this.view.branches : state.epoch === 0 ? [] : await api.branches(thread, signal);
    const generations =
      state.compaction.generation === null
        ? []
        : before && before.epoch === state.epoch && before.compaction.generation === state.compaction.generation
          ? this.view.generations
          : await api.generations(thread, signal);
    const choices = state.calls.length > 0 ? await api.choices(thread, signal) : [];
    const inherited = state.spans.reduce((sum, span) => sum + span.to - span.from, 0) - state.inherited;
    const shown = log === null ? inherited + state.head - 1 : (branches.find((branch) => branch.epoch === log)?.items ?? 0);
    const goesOn = before !== null && before.epoch === state.epoch && this.view.total <= shown;
    const from = goesOn ? this.view.total : Math.max(0, shown - WINDOW);
    const items = await api.items(thread, from, shown, log, signal);
    const fresh = items.map((item, index) => ({ at: from + index + 1, item }));
    const entries = goesOn ? [...this.view.entries, ...fresh] : fresh;
    const total = from + items.length;
    const earlier = goesOn ? this.view.earlier : from;
    const live = this.view.live.filter((one) => !isCommitted(one, entries, this.began));
    this.set({ state, branches, generations, choices, entries, total, earlier, live, error: null, loaded: true });
  }

  async loadEarlier(): Promise<void> {
    const { thread, log, earlier } = this.view;
    const from = Math.max(0, earlier - WINDOW);
    const items = await api.items(thread, from, earlier, log, this.abort.signal);
    const fresh = items.map((item, index) => ({ at: from + index + 1, item }));
    if (this.view.earlier === earlier) this.set({ entries: [...fresh, ...this.view.entries], earlier: from });
  }

  send(text: string): void {
    this.following?.stop();
    this.following = null;
    this.attach({ id: crypto.randomUUID(), text });
  }

  private attach(said: { id: string; text: string } | null): void {
    this.began = this.view.total;
    const live: Live[] = said ? [{ id: said.id, kind: "user", text: said.text, done: true }] : [];
    this.set({ live, running: true, failed: null });
    const following = follow({ agent: this.agent, thread: this.view.thread, said }, (event) => {
      if (this.following === following) this.set({ live: show(this.view.live, event) });
    });
    this.following = following;
    void following.ended.then(async ({ failed }) => {
      if (this.following !== following) return;
      await this.look();
      if (this.following !== following) return;
      this.following = null;
      this.set({ live: [], running: false, failed });
    });
  }

  async stop(): Promise<void> {
    const { thread, state } = this.view;
    if (state?.run || this.following) await api.stop(this.agent, thread);
    else await api.cancel(thread);
    await this.look();
  }

  async choose(choice: string, selected: number): Promise<void> {
    await api.choose(this.view.thread, choice, selected);
    await this.look();
  }
}

// Whether a preview has become an item.
function isCommitted(live: Live, entries: Entry[], began: number): boolean {
  return entries.some(({ at, item: { item } }) => {
    if (live.kind === "call") return item.kind === "tool_call" && item.call_id === live.id;
    if (at <= began || !live.done) return false;
    if (live.kind === "user") return item.kind === "user" && partsText(item.parts).trim() === live.text.trim();
    const kind = live.kind === "text" ? "assistant" : "reasoning";
    return item.kind === kind && (item.text ?? "").trim() === live.text.trim();
  });
}
