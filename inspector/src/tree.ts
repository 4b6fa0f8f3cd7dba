// Threads as a tree: children below who made them, forks below what they began as a copy of.

import type { Summary } from "./api";

export type Relation = "root" | "child" | "fork";

export interface Node {
  thread: Summary;
  relation: Relation;
  children: Node[];
}

export interface Row {
  node: Node;
  level: number;
  // The rows it stands among, for screen readers.
  position: number;
  size: number;
}

// Newest first among roots; what comes of a thread in the order in which it came.
export function grow(threads: Summary[]): Node[] {
  const nodes = new Map<string, Node>();
  for (const thread of threads) {
    const relation: Relation = thread.parent ? "child" : thread.forked_from ? "fork" : "root";
    nodes.set(thread.thread_id, { thread, relation, children: [] });
  }
  const roots: Node[] = [];
  for (const node of nodes.values()) {
    const above = node.thread.parent ?? node.thread.forked_from;
    const parent = above ? nodes.get(above) : undefined;
    // Of one whose parent is not listed, the root stands for itself.
    if (parent && parent !== node) parent.children.push(node);
    else roots.push(node);
  }
  const age = (node: Node) => node.thread.created_at_ms;
  const name = (a: Node, b: Node) => a.thread.thread_id.localeCompare(b.thread.thread_id);
  for (const node of nodes.values()) node.children.sort((a, b) => age(a) - age(b) || name(a, b));
  return roots.sort((a, b) => age(b) - age(a) || name(a, b));
}

export function rows(nodes: Node[], labels: Map<string, string>, closed: Set<string>, filter: string): Row[] {
  const wanted = filter.trim().toLowerCase();
  const matches = (node: Node): boolean =>
    `${node.thread.thread_id} ${labels.get(node.thread.thread_id) ?? ""} ${node.thread.agent}`.toLowerCase().includes(wanted) || node.children.some(matches);
  const found: Row[] = [];
  const walk = (some: Node[], level: number) => {
    const shown = wanted ? some.filter(matches) : some;
    shown.forEach((node, index) => {
      found.push({ node, level, position: index + 1, size: shown.length });
      if (wanted || !closed.has(node.thread.thread_id)) walk(node.children, level + 1);
    });
  };
  walk(nodes, 1);
  return found;
}
