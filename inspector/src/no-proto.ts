// Stands for `@ag-ui/proto`, a third of the client: protocol buffers are decoded only where the server sends them, which it
// does only if it is asked to. Here it is asked for server-sent events.

export const AGUI_MEDIA_TYPE = "application/vnd.ag-ui.event+proto";

function never(): never {
  throw new Error("the server has sent protocol buffers unasked");
}

export const decode = never;
export const encode = never;

export class AGUIUnknownEventTypeError extends Error {}
