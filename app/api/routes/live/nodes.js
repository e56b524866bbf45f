// The nodes of the cluster: who is there, and how one joins and leaves.

import { ask, badge, count, h, named, table, toast, update } from "./dom.js";
import { call } from "./service.js";

const MEMBERS = "/v1/cluster/members";

export function nodesView() {
  const list = h("div");

  async function done(text, path, options) {
    await call(path, { ...options, timeoutMs: 20_000 });
    toast(text);
  }

  async function add() {
    const id = h("input", { required: true, placeholder: "n4" });
    const url = h("input", { required: true, type: "url", placeholder: "http://127.0.0.1:8104" });
    const peer = h("input", { required: true, placeholder: "127.0.0.1:9104" });
    await ask({
      title: "Add a node as a learner",
      text: "Start the node first; promote it once it has caught up.",
      fields: [["id", "Id", id], ["url", "URL", url], ["peer_address", "Peer address", peer]],
      confirm: "Add",
      act: (given) => done(`${given.id} was added`, MEMBERS, { method: "POST", body: given }),
    });
  }

  async function promote(node) {
    const path = `${MEMBERS}/${encodeURIComponent(node.id)}:promote`;
    await done(`${node.id} is a voter`, path, { method: "POST", body: {} }).catch((error) => toast(error.message, true));
  }

  async function remove(node) {
    await ask({
      title: `Remove ${node.id}`,
      text: "The node leaves the groups of all logs. Its folder stays as it is.",
      confirm: "Remove",
      danger: true,
      match: node.id,
      act: () => done(`${node.id} was removed`, `${MEMBERS}/${encodeURIComponent(node.id)}`, { method: "DELETE" }),
    });
  }

  return {
    element: h("section", {}, h("div", { class: "bar" }, h("h1", {}, "Nodes"), h("button", { class: "primary", type: "button", onclick: add }, "Add node")), list),
    close() {},
    refresh(overview) {
      update(list, table(
        [
          ["Node", (node) => named(node.id)],
          ["State", stateOf],
          ["Vote", (node) => (node.voter ? "voter" : node.outside ? "in no log" : "no vote")],
          ["Version", (node) => node.version ?? "–"],
          ["Leads", (node) => logsOf(node, overview.logs), "name"],
          ["URL", (node) => h("a", { href: `${node.url}/ui` }, node.url)],
          ["Actions", (node) => h("div", { class: "actions" }, node.outside ? null : [
            node.voter ? null : h("button", { "data-key": "promote", type: "button", onclick: () => promote(node), "aria-label": `Promote ${node.id}` }, "Promote"),
            h("button", { "data-key": "remove", type: "button", class: "danger", onclick: () => remove(node), "aria-label": `Remove ${node.id}` }, "Remove")]), "number"],
        ],
        overview.nodes,
        { caption: `As ${overview.node} sees them`, key: (node) => node.id, stacks: true },
      ));
    },
  };
}

function logsOf(node, logs) {
  const led = logs.filter((log) => node.alive && log.leader === node.id).map((log) => log.name).sort();
  return led.length ? `${count(led.length)}: ${led.join(" ")}` : "–";
}

// A node that was removed from every log is not missing when it is down.
function stateOf(node) {
  if (node.alive) return badge("connected", "good");
  return node.outside ? badge("removed") : badge("no connection", "bad");
}
