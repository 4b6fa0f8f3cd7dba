// What is said to a thread, and ending what it says.

import { useEffect, useRef, useState } from "preact/hooks";
import { Button } from "./parts";

interface Props {
  thread: string;
  closed: boolean;
  running: boolean;
  waiting: boolean;
  onSend: (text: string) => void;
  onStop: () => void;
}

const MAX_HEIGHT = 220;

export function Composer({ thread, closed, running, waiting, onSend, onStop }: Props) {
  const [text, setText] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => setText(""), [thread]);
  useEffect(() => {
    const field = area.current;
    if (!field) return;
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, MAX_HEIGHT)}px`;
  }, [text]);
  const send = () => {
    if (text.trim() === "" || closed) return;
    onSend(text);
    setText("");
  };
  if (closed) return <p class="composer closed">This thread is closed. Fork it to go on: <code>dormouse fork {thread} NEW</code></p>;
  return (
    <form
      class="composer"
      aria-label="Chat"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        id="composer"
        ref={area}
        rows={1}
        value={text}
        placeholder={waiting ? "Message… (interrupts the calls that are out)" : "Message…"}
        aria-label={`Message to ${thread}`}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          }
        }}
      />
      {running && <Button bare icon="stop" label="Stop the response" onClick={onStop} />}
      <Button bare icon="send" kind="primary" label="Send" disabled={text.trim() === ""} onClick={send} />
    </form>
  );
}
