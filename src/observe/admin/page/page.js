"use strict";
(() => {
  const EVERY = 5000;
  const by = (id) => document.getElementById(id);
  const [said, when, pause, form] = [by("said"), by("when"), by("pause"), by("order")];
  let paused = false;

  const states = (root) =>
    new Map([...root.querySelectorAll("[data-pair]")].map((row) => [row.dataset.pair, row.dataset.state]));

  // Renews the middle of the page; focus and what is opened stay as they are.
  async function renew() {
    let fresh;
    try {
      const answer = await fetch(`./${location.search}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(`it answers ${answer.status}`);
      const text = await answer.text();
      fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
      if (!fresh) throw new Error("what answers is not berth");
    } catch (error) {
      const problem = `Not renewed: ${error.message}`;
      if (when.textContent !== problem) when.textContent = problem;
      return;
    }
    const live = by("live");
    const before = states(live);
    const focused = document.activeElement?.id;
    const within = live.contains(document.activeElement);
    for (const open of live.querySelectorAll("details[open]")) {
      fresh.querySelector(`#${open.id}`)?.setAttribute("open", "");
    }
    live.replaceChildren(...fresh.childNodes);
    if (within && focused) by(focused)?.focus({ preventScroll: true });
    const changed = [...states(live)].filter(([pair, state]) => (before.get(pair) ?? "ready") !== state);
    if (changed.length > 0) {
      said.textContent = changed.slice(0, 3).map(([pair, state]) => `${pair}: ${state.replace("_", " ")}`).join("; ");
    }
    when.textContent = `as of ${new Date().toLocaleTimeString()}, renewed every ${EVERY / 1000} s`;
  }

  async function order(verb) {
    const { token, credential, model } = form.elements;
    if (token.value === "") {
      said.textContent = "Enter the token first.";
      token.focus();
      return;
    }
    const query = new URLSearchParams();
    if (verb === "hold-out") {
      query.set("for", form.elements.for.value);
      if (model.value.trim() !== "") query.set("model", model.value.trim());
    }
    const path = `credentials/${encodeURIComponent(credential.value)}/${verb}?${query}`;
    try {
      const answer = await fetch(path, {
        method: "POST",
        credentials: "omit",
        headers: { authorization: `Bearer ${token.value}` },
      });
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error.message);
      await renew();
      said.textContent = `Done: ${verb} ${credential.value}`;
    } catch (error) {
      said.textContent = `Not done: ${error.message}`;
    }
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    if (paused) when.textContent = "paused";
    else renew();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-credential]");
    if (link && form) form.elements.credential.value = link.dataset.credential;
  });
  if (form) {
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("click", (event) => {
      const button = event.target.closest("[data-verb]");
      if (button) order(button.dataset.verb);
    });
  }
  when.textContent = `renewed every ${EVERY / 1000} s`;
  setInterval(() => {
    if (!paused && document.visibilityState === "visible") renew();
  }, EVERY);
})();
