"""Dialogs of the live page in a browser: a refusal keeps what a person has typed."""

import json
from pathlib import Path

import pytest

from app.names import LOG_NAME
from tests.support.browser import result_of


def test_a_name_that_no_log_can_have_is_explained(site: Path) -> None:
    script = """
      const page = new DOMParser().parseFromString(await (await fetch("index.html")).text(), "text/html");
      for (const script of page.querySelectorAll("script")) script.remove();
      document.body.append(...page.body.children);
      const { logsView } = await import("./logs.js");
      const view = logsView();
      holder.append(view.element);
      [...holder.querySelectorAll("button")].find((each) => each.textContent === "Create log").click();
      const name = byId("dialog").querySelector("input");
      name.value = "a/b";
      result.valid = name.checkValidity();
      result.title = name.title;
    """
    shown = result_of(site, script)
    assert shown["valid"] is False  # the browser shows the title with its own sentence
    assert shown["title"] == LOG_NAME.words.removeprefix("must have ").replace("`", "")


def test_a_cancelled_dialog_returns_the_focus_to_its_button(site: Path) -> None:
    script = """
      document.body.append(h("dialog", { id: "dialog" }), h("main", { id: "view", tabindex: "-1" }));
      const { logsView } = await import("./logs.js");
      holder.append(logsView().element);
      const button = [...holder.querySelectorAll("button")].find((each) => each.textContent === "Create log");
      button.focus();
      button.click();
      const dialog = byId("dialog");
      result.inside = dialog.contains(document.activeElement);
      [...dialog.querySelectorAll("button")].find((each) => each.textContent === "Cancel").click();
      await new Promise((resolve) => setTimeout(resolve, 20));
      result.open = dialog.open;
      result.back = document.activeElement === button;
    """
    assert result_of(site, script) == {"inside": True, "open": False, "back": True}


@pytest.mark.parametrize("how", ["click", "enter"])
def test_a_refused_trim_keeps_the_dialog_with_what_was_typed(site: Path, how: str) -> None:
    script = """
      document.body.append(h("dialog", { id: "dialog" }), h("div", { id: "toasts" }));
      const { settingsTab } = await import("./settings.js");
      const answers = [
        [409, { code: "not-materialized", detail: "the cursor __entries is at 7" }],
        [200, { log: "orders", begin_index: 7 }],
      ];
      const asked = [];
      window.fetch = async (path, { method = "GET", body } = {}) => {
        if (method === "GET") return new Response('{"replication": "raft", "replicas": ["n1"]}');
        asked.push([path, body]);
        const [status, document] = answers.shift();
        return new Response(JSON.stringify(document), { status });
      };
      const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
      const tab = settingsTab("orders");
      holder.append(tab.element);
      await pause();
      [...holder.querySelectorAll("button")].find((each) => each.textContent === "Trim").click();
      await pause();
      const dialog = byId("dialog");
      const input = dialog.querySelector("input");
      input.value = "9";
      const from = HOW === "enter" ? input : dialog.querySelector("[type=submit]");
      from.focus();
      dialog.querySelector("form").requestSubmit();
      while (!dialog.querySelector("[role=alert]").textContent) await pause();
      result.refused = {
        open: dialog.open,
        text: dialog.querySelector("[role=alert]").textContent,
        typed: input.value,
        can_repeat: !dialog.querySelector("[type=submit]").disabled,
        focus: document.activeElement === from,
        toasts: byId("toasts").textContent,
      };
      input.value = "7";
      dialog.querySelector("form").requestSubmit();
      while (dialog.open) await pause();
      result.toasts = byId("toasts").textContent;
      result.asked = asked;
    """
    shown = result_of(site, script.replace("HOW", json.dumps(how)))
    assert shown["refused"] == {
        "open": True,
        "text": "the cursor __entries is at 7",
        "typed": "9",
        "can_repeat": True,
        "focus": True,
        "toasts": "",
    }
    assert shown["toasts"] == "orders begins at index 7"
    path = "/v1/logs/orders:trim"
    assert shown["asked"] == [[path, '{"until_index":9}'], [path, '{"until_index":7}']]


def test_a_refused_append_keeps_the_record_and_a_repeat_stores_it_once(site: Path) -> None:
    script = """
      document.body.append(h("dialog", { id: "dialog" }), h("div", { id: "toasts" }));
      const { recordsTab } = await import("./records.js");
      const keys = [];
      window.fetch = async (path, { method = "GET", headers } = {}) => {
        const empty = { records: [], next_index: 0, begin_index: 0, has_more: false };
        if (method === "GET") return new Response(JSON.stringify(empty));
        keys.push(headers["idempotency-key"]);
        const document = { code: "quorum-timeout", detail: "no majority", outcome: "unknown" };
        return new Response(JSON.stringify(document), { status: 504 });
      };
      const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
      const tab = recordsTab("orders");
      holder.append(tab.element);
      [...holder.querySelectorAll("button")].find((each) => each.textContent === "Append").click();
      await pause();
      const form = byId("dialog").querySelector("form");
      const refusal = form.querySelector("[role=alert]");
      const [key, value, headers] = form.querySelectorAll("input, textarea");
      const send = async () => {
        form.requestSubmit();
        while (!refusal.textContent || form.querySelector("[type=submit]").disabled) await pause();
        return refusal.textContent;
      };
      value.value = "v";
      headers.value = "no colon";
      result.texts = [await send()];
      headers.value = "a: b";
      result.texts.push(await send(), await send());
      value.value = "w";
      await send();
      result.kept = [key.value, value.value, headers.value];
      result.keys = keys.map((each) => keys.indexOf(each));
      tab.close?.();
    """
    shown = result_of(site, script)
    assert shown["texts"] == [
        'A header is a line "name: value", got "no colon"',
        "no majority (unknown)",
        "no majority (unknown)",
    ]
    assert shown["kept"] == ["", "w", "a: b"]
    assert shown["keys"] == [0, 0, 2]  # another record has another key


def test_a_log_that_existed_is_not_reported_as_created(site: Path) -> None:
    script = """
      document.body.append(h("dialog", { id: "dialog" }), h("div", { id: "toasts" }));
      document.body.append(h("main", { id: "view" }));
      const { logsView } = await import("./logs.js");
      holder.append(logsView().element);
      const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
      for (const status of [201, 200]) {
        window.fetch = async () => new Response("{}", { status });
        [...holder.querySelectorAll("button")].find((each) => each.textContent === "Create log").click();
        byId("dialog").querySelector("input").value = "orders";
        byId("dialog").querySelector("form").requestSubmit();
        while (byId("dialog").open) await pause();
      }
      result.toasts = [...byId("toasts").children].map((each) => each.textContent);
    """
    assert result_of(site, script)["toasts"] == [
        "Log orders was created",
        "Log orders existed with these settings",
    ]


def test_a_refused_token_is_forgotten_and_a_cancel_is_respected(site: Path) -> None:
    script = """
      const page = new DOMParser().parseFromString(await (await fetch("index.html")).text(), "text/html");
      for (const script of page.querySelectorAll("script")) script.remove();
      document.body.append(...page.body.children);
      sessionStorage.setItem("commitlog-token", "wrong");
      const served = window.fetch; // takes real time: a dialog reports with the next frame that it was closed
      window.fetch = async () => new Response("{}", { status: 401 });
      const dialog = byId("dialog");
      const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
      await import("./main.js");
      while (!dialog.open) await pause();
      result.text = dialog.textContent;
      result.token = sessionStorage.getItem("commitlog-token");
      let closed = false;
      dialog.addEventListener("close", () => { closed = true; });
      dialog.querySelector("button[type=button]").click();
      while (!closed) await served("index.html", { cache: "no-store" });
      for (let turn = 0; turn < 150; turn += 1) await pause(); // 3 s: some polls
      result.again = dialog.open;
      result.button = byId("token").textContent;
      byId("token").click();
      result.asked = dialog.open;
    """
    shown = result_of(site, script)
    assert "does not accept this token" in str(shown["text"])
    assert shown["token"] is None
    assert (shown["again"], shown["button"], shown["asked"]) == (False, "Log in", True)


def test_a_login_comes_above_an_open_dialog_which_stays_as_it_was_filled_in(site: Path) -> None:
    script = """
      const { ask } = await import("./dom.js");
      document.body.append(h("dialog", { id: "dialog" }), h("div", { id: "toasts" }));
      const input = h("input");
      const asked = ask({ title: "Append", fields: [["value", "Value", input]] });
      input.value = "typed";
      const login = ask({ title: "Log in", fields: [["token", "Token", h("input")]], confirm: "Log in" });
      const above = document.querySelector("dialog:modal:not(#dialog)");
      above.querySelector("input").value = "secret";
      result.titles = [...document.querySelectorAll("dialog[open] h2")].map((title) => title.textContent);
      result.label = document.getElementById(above.getAttribute("aria-labelledby")).textContent;
      above.querySelector("form").requestSubmit();
      result.token = (await login).token;
      result.left = document.querySelectorAll("dialog").length;
      result.open = byId("dialog").open;
      byId("dialog").querySelector("form").requestSubmit();
      result.value = (await asked).value;
    """
    assert result_of(site, script) == {
        "titles": ["Append", "Log in"],
        "label": "Log in",
        "token": "secret",
        "left": 1,
        "open": True,
        "value": "typed",
    }


def test_a_view_shows_nothing_of_a_revoked_token_and_is_read_again_after_the_login(site: Path) -> None:
    """The records of a bookmarked log stayed a refusal after the login; those of a revoked token stayed."""
    script = """
      const page = new DOMParser().parseFromString(await (await fetch("index.html")).text(), "text/html");
      for (const script of page.querySelectorAll("script")) script.remove();
      document.body.append(...page.body.children);
      const served = window.fetch;
      let accepted = "first";
      const overview = { cluster: "c", node: "n1", nodes: [], logs: [], login: true, has_docs: false };
      const record = { index: 0, timestamp: 1, key: "k", term: 1, offset: 0, type: "data" };
      const found = { ...overview, begin_index: 0, next_index: 1, has_more: false };
      const page_of = (value) => ({ ...found, records: [{ ...record, value }] });
      window.fetch = async (path, { headers } = {}) => (headers?.authorization === `Bearer ${accepted}`
        ? new Response(JSON.stringify(page_of(`of ${accepted}`))) : new Response("{}", { status: 401 }));
      const view = byId("view");
      const until = async (holds) => {
        for (let turn = 0; turn < 60 && !holds(); turn += 1) {
          await served("index.html", { cache: "no-store" }); // real time, for the event of a closed dialog
          await new Promise((resolve) => setTimeout(resolve, 20));
        }
        return holds();
      };
      async function logIn(token) {
        const dialog = document.querySelector("dialog:modal");
        dialog.querySelector("input").value = token;
        dialog.querySelector("form").requestSubmit();
        return until(() => view.textContent.includes(`of ${token}`));
      }
      const asked = () => until(() => document.querySelector("dialog:modal") !== null);
      location.hash = "#/logs/orders/records";
      await import("./main.js");
      await asked();
      result.first = await logIn("first");
      accepted = "second";
      await asked();
      result.old = view.textContent.includes("of first");
      result.refusal = await until(() => view.textContent.includes("Log in to read the records"));
      result.second = await logIn("second");
      result.focused = await until(() => document.activeElement === view);
    """
    assert result_of(site, script) == {
        "first": True,
        "old": False,
        "refusal": True,
        "second": True,
        "focused": True,
    }


def test_a_token_that_no_header_can_carry_is_refused(site: Path) -> None:
    """It would make every later call fail, as if the node did not respond."""
    script = """
      const { setToken, token } = await import("./service.js");
      setToken("cl_good");
      for (const bad of ["a b", "a\\nb", "\u2014x"]) {
        try { setToken(bad); } catch (error) { result[bad] = error.message; }
      }
      result.kept = token();
    """
    shown = result_of(site, script)
    assert shown.pop("kept") == "cl_good"
    assert set(shown.values()) == {"A token has visible ASCII characters alone, and no blanks"}
    assert len(shown) == 3
