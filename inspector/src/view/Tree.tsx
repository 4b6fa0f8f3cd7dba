// Threads as a tree, for the keyboard as WAI-ARIA has it.

import { useEffect, useRef, useState } from "preact/hooks";
import { ago, count } from "../time";
import { type Node, type Row, rows } from "../tree";
import { Icon, type IconName } from "./parts";

interface Props {
  nodes: Node[];
  // What threads with made names are about.
  labels: Map<string, string>;
  selected: string | null;
  filter: string;
  now: number;
  onSelect: (thread: string) => void;
}

function iconOf({ node }: Row): IconName {
  if (node.relation === "fork") return "branch";
  return ({ root: "thread", child: "agent", event: "event", compaction: "layers" } as const)[node.thread.kind];
}

function kindOf({ node }: Row): string {
  if (node.relation === "fork") return "fork";
  return { root: "conversation", child: "child", event: "event", compaction: "summary" }[node.thread.kind];
}

function stateOf({ node: { thread } }: Row): [string, string] {
  if (thread.closed) return ["closed", "closed"];
  if (thread.pending > 0) return ["waiting", `waits for ${count(thread.pending, "call")}`];
  return ["asleep", "asleep"];
}

export function Tree({ nodes, labels, selected, filter, now, onSelect }: Props) {
  const [closed, setClosed] = useState<Set<string>>(new Set());
  const [active, setActive] = useState<string | null>(null);
  const tree = useRef<HTMLDivElement>(null);
  const moved = useRef(false);
  const shown = rows(nodes, labels, closed, filter);
  const names = shown.map((row) => row.node.thread.thread_id);
  const current = active && names.includes(active) ? active : selected && names.includes(selected) ? selected : names[0];

  useEffect(() => {
    if (!moved.current) return;
    moved.current = false;
    tree.current?.querySelector<HTMLElement>('[tabindex="0"]')?.focus();
  }, [current]);

  const move = (to: string | undefined) => {
    if (!to) return;
    moved.current = true;
    setActive(to);
  };
  const toggle = (name: string, open: boolean) => {
    const next = new Set(closed);
    if (open) next.delete(name);
    else next.add(name);
    setClosed(next);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const at = names.indexOf(current ?? "");
    const row = shown[at];
    if (!row) return;
    const { thread, children } = row.node;
    const open = children.length > 0 && !closed.has(thread.thread_id);
    switch (event.key) {
      case "ArrowDown":
        move(names[at + 1]);
        break;
      case "ArrowUp":
        move(names[at - 1]);
        break;
      case "Home":
        move(names[0]);
        break;
      case "End":
        move(names.at(-1));
        break;
      case "ArrowRight":
        if (open) move(children[0]?.thread.thread_id);
        else if (children.length > 0) toggle(thread.thread_id, true);
        break;
      case "ArrowLeft":
        if (open) toggle(thread.thread_id, false);
        else move(thread.parent ?? thread.forked_from ?? undefined);
        break;
      case "Enter":
      case " ":
        onSelect(thread.thread_id);
        break;
      default:
        return;
    }
    event.preventDefault();
    event.stopPropagation();
  };

  return (
    <div class="tree" role="tree" aria-label="Threads" ref={tree} onKeyDown={onKeyDown}>
      {shown.map((row) => {
        const { thread, children } = row.node;
        const name = thread.thread_id;
        const label = labels.get(name);
        const [state, told] = stateOf(row);
        const expanded = children.length > 0 ? !closed.has(name) || filter.trim() !== "" : undefined;
        return (
          <div
            key={name}
            role="treeitem"
            aria-level={row.level}
            aria-posinset={row.position}
            aria-setsize={row.size}
            aria-selected={name === selected}
            aria-expanded={expanded}
            aria-label={`${label ? `${label}, ` : ""}${name}, ${kindOf(row)}, ${told}`}
            tabIndex={name === current ? 0 : -1}
            class={`node ${row.node.relation} ${state}`}
            style={{ "--level": row.level }}
            data-thread={name}
            data-relation={row.node.relation}
            onFocus={() => setActive(name)}
            onClick={() => onSelect(name)}
          >
            {children.length > 0 ? (
              <span
                class={`twist ${expanded ? "open" : ""}`}
                onClick={(event) => {
                  event.stopPropagation();
                  toggle(name, !expanded);
                }}
              >
                <Icon name="chevron" />
              </span>
            ) : (
              <span class="twist" />
            )}
            <span class="glyph" title={kindOf(row)}>
              <Icon name={iconOf(row)} />
            </span>
            <span class="name" title={label ? `${label}\n${name}` : name}>
              {label ?? name}
            </span>
            {thread.pending > 0 && !thread.closed && (
              <span class="count" title={told}>
                {thread.pending}
              </span>
            )}
            <span class="age" title={new Date(thread.created_at_ms).toLocaleString()}>
              {thread.closed ? "closed" : ago(thread.created_at_ms, now)}
            </span>
          </div>
        );
      })}
    </div>
  );
}
