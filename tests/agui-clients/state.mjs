// What an application and its agent share, as HttpAgent of three published versions keeps it. The server's agent has the
// tools read_state and update_state.
// usage: node state.mjs RUN_ENDPOINT [options]   (node state.mjs --help)
import { check, errorCode, finish, history, parseArgs, recordFetch, same, scenario, textOf, types, uid, user, within } from './lib/common.mjs';
import { CLIENTS } from './lib/verify.mjs';

const opts = parseArgs();
console.warn = console.error = () => {};
process.on('unhandledRejection', (e) => check('no unhandled rejection', false, e?.message));
recordFetch(opts);

const patch = (...operations) => `call update_state ${JSON.stringify({ patch: operations })}`;
const FIRST = { items: ['a'], note: null, long: 'x'.repeat(60) };
const PATCHED = { ...FIRST, items: ['a', { b: null }] };

for (const [version, client] of Object.entries(CLIENTS)) {
  const make = (threadId = uid('th')) => new client.HttpAgent({ url: opts.endpoint, headers: opts.headers, threadId });
  const say = async (agent, text) => {
    const events = [];
    agent.addMessage(user(text));
    const result = await within(agent.runAgent({}, { onEvent: ({ event }) => { events.push(event); } }), opts.timeout, 'run');
    return { ...result, events };
  };
  const name = (s) => `${version} ${s}`;

  await scenario(opts, name('a state that nobody has'), async () => {
    const a = make();
    const { events } = await say(a, 'say alpha');
    check('no state event', !types(events).some((type) => type.startsWith('STATE_')), types(events));
    same('nor in the history', (await history(opts, a.threadId)).state, undefined);
  });

  await scenario(opts, name('the agent changes what the application has sent'), async () => {
    const a = make();
    a.setState(FIRST);
    const { events } = await say(a, patch({ op: 'add', path: '/items/-', value: { b: null } }));
    same('whole at first, then what has changed', types(events).filter((type) => type.startsWith('STATE_')), ['STATE_SNAPSHOT', 'STATE_DELTA']);
    same('the client has it', a.state, PATCHED);
    same('the history too', (await history(opts, a.threadId)).state, PATCHED);
    const read = await say(a, 'call read_state {"path":"/items/1"}');
    same('the agent reads it', textOf(read.newMessages), ['result: {"b":null}']);
  });

  await scenario(opts, name('a change that cannot be made'), async () => {
    const a = make();
    a.setState(FIRST);
    const refused = await say(a, patch({ op: 'remove', path: '/none' }));
    check('the model reads why', textOf(refused.newMessages)[0]?.includes('operation 0 cannot be applied'), textOf(refused.newMessages));
    await say(a, patch({ op: 'add', path: '/__proto__/polluted', value: 1 }));
    same('nothing has changed', a.state, FIRST);
    check('nothing is polluted', {}.polluted === undefined);
  });

  await scenario(opts, name('another page, and an edit'), async () => {
    const a = make();
    await say(a, 'say alpha');
    a.setState(FIRST);
    await say(a, 'say bravo');
    // A page that is opened anew has the messages and no state.
    const b = make(a.threadId);
    b.setMessages((await history(opts, a.threadId)).messages);
    await say(b, 'say charlie');
    same('it is shown what there is', b.state, FIRST);
    const c = make(a.threadId);
    c.setMessages(b.messages.slice(0, 2));
    const edited = await say(c, 'say delta');
    same('in front of it there was none', types(edited.events).filter((type) => type.startsWith('STATE_')), []);
    same('nor is there now', (await history(opts, a.threadId)).state, undefined);
  });

  await scenario(opts, name('a state that is too large'), async () => {
    const a = make();
    a.setState({ text: 'x'.repeat(200_000) });
    const failed = await say(a, 'say alpha').then((r) => errorCode(r.events) ?? 'no error', (e) => String(e?.message ?? e));
    check('is refused with its name', /413|state/.test(failed), failed);
  });
}

await finish();
