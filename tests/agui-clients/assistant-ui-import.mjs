// What only a browser has becomes a thread of the server: assistant-ui's own export, with its branches, posted to another
// thread, and gone on with by the browser that kept it and by one that loads it.
// usage: node assistant-ui-import.mjs RUN_ENDPOINT [options]
import { check, finish, history, parseArgs, same, scenario, sleep, uid, until } from './lib/common.mjs';

const opts = parseArgs();
const P = opts.prompts;
const quiet = console.error;
console.error = console.warn = () => {};
const { brief, ExportedMessageRepository, mountChat } = await import('./lib/assistant-ui.mjs');

const tools = { cl_where: async ({ q }) => ({ at: 'here', q }) };
const open = (extra = {}) => mountChat({ endpoint: opts.endpoint, headers: opts.headers, threadId: uid('th'), tools, ...extra });
const say = async (chat, text, extra) => { chat.append(text, extra); await sleep(30); await chat.idle(opts.timeout); };
const last = (chat) => brief(chat.messages()).at(-1);
const texts = (messages) => messages.filter((m) => m.role !== 'tool').map((m) => m.content ?? '');

/** Posts a conversation, and waits until the thread is made. */
async function bring(threadId, body) {
  const url = opts.messages.replace('{threadId}', encodeURIComponent(threadId));
  const headers = { ...opts.headers, 'content-type': 'application/json' };
  const res = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
  same('taken', res.status, 202);
  let stored;
  await until(async () => (stored = (await history(opts, threadId)).messages).length > 0, opts.timeout, 'import');
  return stored;
}

await scenario(opts, 'an export becomes a thread, and its browser goes on', async () => {
  const a = await open();
  await say(a, P.serverTool);
  await say(a, P.sayOne);
  await say(a, P.sayEdited, { parentId: a.messages()[1].id });
  a.reload(a.messages().at(-2).id);
  await sleep(30);
  await a.idle();
  // As a browser stores it.
  const kept = JSON.parse(JSON.stringify(a.exported()));
  const shown = brief(a.messages());
  a.unmount();
  same('messages kept', kept.messages.length, 7);

  const threadId = uid('th');
  same('stored', texts(await bring(threadId, kept)), [P.serverTool, 'let me look', 'it is {"k":1}', P.sayEdited, 'charlie']);
  const b = await open({ threadId, loaded: kept });
  same('thread', brief(b.messages()), shown);
  await say(b, P.seen);
  same('goes on', last(b), `a:seen: ${P.serverTool}|${P.sayEdited}[complete/unknown]`);
  same('at the head', texts((await history(opts, threadId)).messages).length, 7);
  // On the branch that the edit has left.
  await say(b, P.seen, { parentId: kept.messages.find((x) => x.message.content[0]?.text === 'alpha').message.id });
  same('goes on', last(b), `a:seen: ${P.serverTool}|${P.sayOne}[complete/unknown]`);
  b.unmount();

  const r = await history(opts, threadId, '?format=repository');
  const c = await open({ threadId, loaded: ExportedMessageRepository.fromBranchableArray(r.messages, { headId: r.headId }) });
  same('as the server has it', last(c), `a:seen: ${P.serverTool}|${P.sayOne}[complete/unknown]`);
  const said = c.exported().messages.filter((x) => x.message.role === 'user').map((x) => x.message.content[0].text);
  same('every branch', said.sort(), [P.serverTool, P.sayOne, P.sayEdited, P.seen, P.seen].sort());
  c.unmount();
});

await scenario(opts, 'a client tool that has not answered is cut short', async () => {
  const a = await open({ tools: {} });
  await say(a, P.sayOne);
  const kept = JSON.parse(JSON.stringify(a.exported()));
  a.unmount();
  const call = { type: 'tool-call', toolCallId: 'mine', toolName: 'cl_where', args: { q: 'x' }, argsText: '{"q":"x"}' };
  kept.messages.at(-1).message.content.push(call);
  const threadId = uid('th');
  const stored = await bring(threadId, kept);
  check('shown as cancelled', stored.at(-1).role === 'tool' && Boolean(stored.at(-1).error), stored.at(-1));
  const b = await open({ threadId, loaded: kept });
  await say(b, P.seen);
  same('goes on', last(b), `a:seen: ${P.sayOne}[complete/unknown]`);
  b.unmount();
});

console.error = quiet;
await finish();
