// The shell: which view is shown, the poll once a second, the login, and the move to a living node.

import { ask, byId, h } from "./dom.js";
import { logView } from "./log.js";
import { logsView } from "./logs.js";
import { nodesView } from "./nodes.js";
import { call, livingNode, Problem, remember, setToken, token } from "./service.js";

const INTERVAL_MS = 1000;
const MOVE_AFTER_MS = 4000;

let view = null; // {element, refresh(overview), close()}
let shownFor = null;
let silentSince = null;
let asking = false;
let declined = false; // to log in

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; } // typed by hand, with a stray percent sign
}

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  if (parts[0] === "nodes") return { name: "nodes", title: "Nodes", make: nodesView };
  if (parts[0] === "logs" && parts[1]) return { name: "logs", title: parts[1], make: () => logView(parts[1], parts[2] || "overview") };
  return { name: "logs", title: "Logs", make: logsView };
}

function show() {
  const { name, title, make } = route();
  if (view) view.close();
  shownFor = location.hash;
  view = make();
  byId("view").replaceChildren(view.element);
  document.title = `${title} - commitlog`; // distinguishes the views in the history and for screen readers
  for (const link of document.querySelectorAll("[data-nav]")) {
    if (link.dataset.nav === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function logIn(reason) {
  if (asking) return;
  asking = true;
  const input = h("input", { type: "password", autocomplete: "off", required: true });
  const answer = await ask({
    title: "Log in",
    text: reason || "The token stays in this tab and is sent with each call.",
    fields: [["token", "Token", input]],
    confirm: "Log in",
    act: (given) => { setToken(given.token.trim()); return given; },
  });
  asking = false;
  declined = !answer; // the button asks again
  if (!answer) return;
  showAgain();
  const focused = document.activeElement; // the field of the closed dialog keeps it until the next frame
  if (focused === document.body || focused.closest("dialog:not([open])")) byId("view").focus(); // what had it was replaced
}

// After a change of the token: what another one has read is removed, and refusals are read again.
function showAgain() {
  showToken();
  show();
}

function showToken() {
  byId("token").textContent = token() ? "Log out" : "Log in";
}

function answered(overview) {
  silentSince = null;
  remember(overview.nodes);
  byId("cluster").textContent = overview.cluster;
  byId("token").hidden = !overview.login; // without tokens there is nothing to log in to
  byId("docs").hidden = !overview.has_docs;
  byId("pulse").textContent = `live from ${overview.node}`;
  byId("pulse").className = "";
  byId("stale").hidden = true;
  document.body.classList.remove("stale");
}

// What was shown may be wrong by now: it is marked as old, and another node is looked for.
async function silent(error, askedMs) {
  silentSince ??= askedMs; // an answer that does not arrive ends seconds later
  const seconds = Math.round((Date.now() - silentSince) / 1000);
  byId("pulse").textContent = "no response";
  byId("pulse").className = "lost";
  byId("stale").hidden = false;
  byId("stale").textContent = `This node has not responded for ${seconds} s (${error.message}). What is shown is old.`;
  document.body.classList.add("stale");
  if (Date.now() - silentSince < MOVE_AFTER_MS) return;
  const url = await livingNode();
  if (url) location.replace(`${url}/ui${location.hash}`);
}

async function poll() {
  if (document.visibilityState === "visible") {
    const askedMs = Date.now();
    try {
      const overview = await call("/ui/overview.json");
      answered(overview);
      await view.refresh(overview);
    } catch (error) {
      if (error instanceof Problem && error.status === 401) {
        byId("token").hidden = false;
        byId("pulse").textContent = "login required";
        byId("pulse").className = "lost";
        const reason = token() ? "The node does not accept this token." : "This cluster requires a token.";
        if (token() || !declined) {
          setToken(null);
          showAgain();
          await logIn(reason);
        }
      } else if (error instanceof Problem) {
        byId("pulse").textContent = error.message;
        byId("pulse").className = "lost";
      } else {
        await silent(error, askedMs);
      }
    }
  }
  setTimeout(poll, INTERVAL_MS);
}

byId("token").addEventListener("click", () => {
  if (token()) { setToken(null); showAgain(); } else logIn();
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); byId("view").focus(); }); // its address would be a view
window.addEventListener("hashchange", () => { if (location.hash !== shownFor) { show(); byId("view").focus({ preventScroll: true }); scrollTo(0, 0); } });
const named = new URLSearchParams(location.search).get("log"); // an address of earlier versions
if (named && !location.hash) history.replaceState(null, "", `/ui#/logs/${encodeURIComponent(named)}`);
showToken();
show();
poll();
