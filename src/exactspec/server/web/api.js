/**
 * The server, as the page sees it: one streamed request, the state, the model.
 *
 * All failures are `ApiFailure`: `kind` is "refused" (an error reply), "gone" (no reply, or the connection broke before
 * the end), or "broken" (an error in the stream). `status`: of the reply, 0 without one; `retryAfter`: seconds, or null.
 * A request that its `signal` ended raises the browser's AbortError.
 */

export class ApiFailure extends Error {
  constructor(kind, message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function send(path, options) {
  try {
    return await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiFailure("gone", "The server cannot be reached.");
  }
}

async function refusal(response) {
  let message = `The server answered with status ${response.status}.`;
  let code = null;
  try {
    const { error } = await response.json();
    message = error.message;
    code = error.code;
  } catch {
    // not the API's own shape: a proxy's reply, say
  }
  const wait = Number.parseFloat(response.headers.get("Retry-After"));
  return new ApiFailure("refused", message, {
    status: response.status,
    code,
    retryAfter: Number.isFinite(wait) ? wait : null,
  });
}

/** "ok", "starting", "stopping", "broken", or "gone". */
export async function health() {
  try {
    const response = await fetch("/health", { cache: "no-store" });
    return (await response.json()).status;
  } catch {
    return "gone";
  }
}

/** What `/v1/models` says of the one model: `id`, `max_model_len`, `exactspec`. */
export async function model(key) {
  const response = await send("/v1/models", { headers: headers(key) });
  if (!response.ok) throw await refusal(response);
  return (await response.json()).data[0];
}

/** A chat request. Yields the events of its stream, parsed; returns after the last one. */
export async function* chat(body, { key, signal }) {
  const response = await send("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const data of serverSentEvents(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiFailure("broken", event.error.message, { code: event.error.code });
    yield event;
  }
  throw new ApiFailure("gone", "The connection ended before the answer did.");
}

/** The `data` of each event of a stream of bytes. The server writes one line an event. */
async function* serverSentEvents(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiFailure("gone", "The connection ended before the answer did.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
