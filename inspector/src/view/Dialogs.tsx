// Dialogs: shortcuts, a new thread, a token.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { api, setToken } from "../api";
import { Button } from "./parts";

function Dialog({ title, onClose, children }: { title: string; onClose: (() => void) | null; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (!dialog.current?.open) dialog.current?.showModal();
  }, []);
  return (
    <dialog
      ref={dialog}
      aria-labelledby="dialog-title"
      onCancel={(event) => {
        event.preventDefault();
        onClose?.();
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose?.();
      }}
    >
      <div class="dialog">
        <header>
          <h2 id="dialog-title">{title}</h2>
          {onClose && <Button bare icon="close" label="Close" onClick={onClose} />}
        </header>
        {children}
      </div>
    </dialog>
  );
}

export const SHORTCUTS: [string[], string][] = [
  [["j", "k"], "next, previous entry of the timeline"],
  [["g", "G"], "first, last entry"],
  [["Enter"], "unfold or fold the entry"],
  [["t"], "to the list of threads; arrows move in it, Enter opens"],
  [["/"], "filter threads"],
  [["c"], "write a message; Esc leaves it"],
  [["n"], "new thread"],
  [["i"], "show or hide details"],
  [["d"], "dark, light, or as the system has it"],
  [["?"], "this list"],
];

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, what]) => (
          <div key={what}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

// What a message group may be called.
const NAME = "[\\x21-\\x7e]{1,128}";

export function NewThread({ onClose, onMake }: { onClose: () => void; onMake: (thread: string, agent: string) => void }) {
  const [name, setName] = useState(`chat-${Math.random().toString(36).slice(2, 8)}`);
  const [agents, setAgents] = useState<string[]>([]);
  const [agent, setAgent] = useState("");
  useEffect(() => {
    void api.agents().then(
      (found) => {
        setAgents(found);
        setAgent((chosen) => chosen || (found.includes("default") ? "default" : (found[0] ?? "")));
      },
      () => undefined,
    );
  }, []);
  return (
    <Dialog title="New thread" onClose={onClose}>
      <form
        class="fields"
        onSubmit={(event) => {
          event.preventDefault();
          onMake(name, agent || "default");
        }}
      >
        <label>
          Name
          <input
            value={name}
            required
            pattern={NAME}
            title="1 to 128 ASCII letters, digits and punctuation"
            autocomplete="off"
            spellcheck={false}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        </label>
        <label>
          Agent
          <select value={agent} onChange={(event) => setAgent(event.currentTarget.value)}>
            {agents.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
        <p class="fine">It begins with its first message.</p>
        <footer>
          <Button label="Cancel" onClick={onClose} />
          <button type="submit" class="button primary">
            Create
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

export function Token({ onDone }: { onDone: () => void }) {
  const [value, setValue] = useState("");
  return (
    <Dialog title="Sign in" onClose={null}>
      <form
        class="fields"
        onSubmit={(event) => {
          event.preventDefault();
          setToken(value.trim());
          onDone();
        }}
      >
        <label>
          Bearer token
          <input type="password" value={value} required autocomplete="off" onInput={(event) => setValue(event.currentTarget.value)} />
        </label>
        <p class="fine">Sent to this server alone, and kept until the tab is closed. You see your own threads.</p>
        <footer>
          <button type="submit" class="button primary">
            Continue
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
