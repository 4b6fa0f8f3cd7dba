// What is known of a thread beside its items.

import type { ComponentChildren } from "preact";
import type { Summary } from "../api";
import type { View } from "../feed";
import { count, lasting } from "../time";
import { CopyButton, Icon, Time } from "./parts";

interface Props {
  view: View;
  relatives: { thread: Summary; relation: string }[];
  labels: Map<string, string>;
  now: number;
  onThread: (thread: string) => void;
  onLog: (log: number | null) => void;
}

function Section({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section>
      <h3>{title}</h3>
      {children}
    </section>
  );
}

export function Details({ view, relatives, labels, now, onThread, onLog }: Props) {
  const { state } = view;
  if (!state) return null;
  const { usage, compaction, pruned, run } = state;
  const link = (thread: string) => (
    <button type="button" class="link" onClick={() => onThread(thread)} title={thread}>
      {labels.get(thread) ?? thread}
    </button>
  );
  const summarised = view.generations[0];
  return (
    <aside class="details" aria-label="Details">
      <Section title="Thread">
        <dl>
          <dt>Name</dt>
          <dd class="with-button">
            <span class="mono" title={state.thread_id}>
              {state.thread_id}
            </span>
            <CopyButton text={state.thread_id} label="Copy the name" />
          </dd>
          <dt>Kind</dt>
          <dd>{{ root: state.forked_from ? "fork" : "conversation", child: "child", event: "event", compaction: "summary" }[state.kind]}</dd>
          {state.parent && (
            <>
              <dt>Parent</dt>
              <dd>{link(state.parent)}</dd>
            </>
          )}
          {state.forked_from && (
            <>
              <dt>Fork of</dt>
              <dd>{link(state.forked_from)}</dd>
            </>
          )}
          <dt>Agent</dt>
          <dd>{state.agent}</dd>
          {state.owner && (
            <>
              <dt>Owner</dt>
              <dd>{state.owner}</dd>
            </>
          )}
          <dt>Since</dt>
          <dd>
            <Time ms={state.created_at_ms} long />
          </dd>
          <dt>Items</dt>
          <dd>
            {view.total.toLocaleString("en")} in {count(state.turns, "turn")}
          </dd>
        </dl>
      </Section>
      {state.calls.length > 0 && (
        <Section title="Calls without a result">
          <ul class="plain">
            {state.calls.map((call) => {
              const item = view.entries.find(({ item }) => item.item.call_id === call.call_id && item.item.kind === "tool_call");
              return (
                <li key={call.call_id} class="waits">
                  {item ? (
                    <a class="mono" href={`#item-${item.at}`} data-goto={item.at}>
                      {call.name}
                    </a>
                  ) : (
                    <span class="mono">{call.name}</span>
                  )}
                  <span>
                    {call.parked ? "result is in" : { result: "out", turn: "queued", consent: "asks" }[call.waits_for]}
                    {item && !call.parked && ` ${lasting(now - item.item.created_at_ms)}`}
                  </span>
                </li>
              );
            })}
          </ul>
        </Section>
      )}
      {run && (
        <Section title="Run">
          <p>
            {run.stopping ? "stopping" : run.state}
            {run.attempt > 0 && `, slice ${run.attempt}`}
          </p>
        </Section>
      )}
      <Section title="Context">
        <dl>
          <dt>Last request</dt>
          <dd>{usage ? `${count(usage.input, "token")}${usage.cached > 0 ? `, ${usage.cached.toLocaleString("en")} cached` : ""}` : "–"}</dd>
          <dt>Last response</dt>
          <dd>{usage ? count(usage.output, "token") : "–"}</dd>
          <dt>Summary</dt>
          <dd>
            {summarised
              ? `${summarised.generation}, of ${count(summarised.covers ?? 0, "item")}`
              : compaction.failed_attempts > 0
                ? "failed"
                : "none"}
          </dd>
          {pruned.shortened_before > 0 && (
            <>
              <dt>Results</dt>
              <dd>
                shortened before turn {pruned.shortened_before + 1}
                {pruned.cleared_before > 0 && `, cleared before turn ${pruned.cleared_before + 1}`}
              </dd>
            </>
          )}
        </dl>
        {compaction.failed_attempts > 0 && (
          <p class="problem">
            {count(compaction.failed_attempts, "attempt")} at a summary failed
            {compaction.failure && `: ${compaction.failure}`}. Next not before <Time ms={compaction.next_try_at_ms} />.
          </p>
        )}
      </Section>
      {view.branches.length > 1 && (
        <Section title="Branches">
          <ul class="plain logs">
            {view.branches.map((branch) => {
              const shown = view.log === null ? branch.current : branch.epoch === view.log;
              return (
                <li key={branch.epoch}>
                  <button type="button" aria-pressed={shown} onClick={() => onLog(branch.current ? null : branch.epoch)}>
                    <Icon name="branch" />
                    <span>
                      Log {branch.epoch}
                      {branch.current && " · current"}
                    </span>
                    <span class="fine">{count(branch.items, "item")}</span>
                  </button>
                </li>
              );
            })}
          </ul>
        </Section>
      )}
      {relatives.length > 0 && (
        <Section title="Children and forks">
          <ul class="plain">
            {relatives.map(({ thread, relation }) => (
              <li key={thread.thread_id} class="waits">
                {link(thread.thread_id)}
                <span>{relation}</span>
              </li>
            ))}
          </ul>
        </Section>
      )}
      {(state.unfinished > 0 || view.error) && (
        <Section title="Under way">
          {state.unfinished > 0 && <p>{count(state.unfinished, "message")} in work</p>}
          {view.error && <p class="problem">{view.error.message}</p>}
        </Section>
      )}
    </aside>
  );
}
