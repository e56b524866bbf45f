// Calls of the REST routes: the token, problem documents, and another node when this one is silent.

const TOKEN = "commitlog-token";
const NODES = "commitlog-nodes";
const TIMEOUT_MS = 8_000;
const PROBE_MS = 1_500;

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `status ${status}`);
    this.status = status;
    this.code = document.code;
    this.document = document;
  }
}

// An integer that a number cannot hold becomes a BigInt, and the same text again.
export const parse = (text) => JSON.parse(text, (_, value, context) => (
  typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? BigInt(context.source) : value));
export const json = (value) => JSON.stringify(value, (_, each) => (typeof each === "bigint" ? JSON.rawJSON(each) : each));

export const token = () => sessionStorage.getItem(TOKEN);

// Raises Error for a token that no header can carry. null: none.
export function setToken(value) {
  if (value && !/^[!-~]+$/.test(value)) throw new Error("A token has visible ASCII characters alone, and no blanks");
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

function headersOf(given = {}) {
  return token() ? { ...given, authorization: `Bearer ${token()}` } : given;
}

// Raises Problem for a refusal, TypeError or AbortError when the node does not answer.
export async function fetchRaw(path, { method = "GET", body, headers = {}, timeoutMs = TIMEOUT_MS } = {}) {
  const answer = await fetch(path, {
    method,
    cache: "no-store",
    headers: headersOf(body === undefined ? headers : { "content-type": "application/json", ...headers }),
    body: body === undefined ? undefined : json(body),
    signal: AbortSignal.timeout(timeoutMs),
  });
  if (!answer.ok) {
    const document = await answer.text().then(parse).catch(() => ({}));
    throw new Problem(answer.status, document);
  }
  return answer;
}

export async function call(path, options) {
  const answer = await fetchRaw(path, options);
  return parse(await answer.text());
}

export const pathOf = (log) => `/v1/logs/${encodeURIComponent(log)}`;

// Other nodes are remembered while this one answers, and asked when it does not.
export function remember(nodes) {
  sessionStorage.setItem(NODES, JSON.stringify(nodes.map((node) => node.url)));
}

export async function livingNode() {
  const urls = JSON.parse(sessionStorage.getItem(NODES) || "[]").filter((url) => new URL(url).origin !== location.origin);
  for (const url of urls) {
    try {
      await fetch(`${url}/healthz`, { mode: "no-cors", cache: "no-store", signal: AbortSignal.timeout(PROBE_MS) });
      return url;
    } catch { /* the next one */ }
  }
  return null;
}
