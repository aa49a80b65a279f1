// What the status page promises, each met in a browser.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { join } from "node:path";

import { AXE, SECRETS, TOKEN, freePort, read, within } from "./stage.mjs";

const row = (page, credential, model) => page.locator(`[data-pair="${credential} with ${model}"]`);
const state = (page, credential, model = "gpt-sim") => row(page, credential, model).getAttribute("data-state");
const said = (page) => page.locator("#said");

// Newcomers come until `a` is known to turn them away and `c` to have a bad key.
async function contrast(stage) {
  await stage.reset();
  for (let n = 0; n < 60; n++) {
    assert.equal(await stage.ask(), 200);
    const { pairs } = await stage.status();
    const is = (credential, state) => pairs.some((it) => it.credential === credential && it.state === state);
    if (is("campus-a", "cooling") && is("campus-c", "rejected")) return;
  }
  throw new Error("60 newcomers, and nothing was learned");
}

export const promises = {
  async "states change on the open page as refusals happen"(stage) {
    const { page, troubles } = await stage.open();
    assert.match(await page.locator("#live").innerText(), /3 of 3 credentials ready/);
    assert.match(await page.locator("#latest ~ p").innerText(), /None since/);
    await page.evaluate(() => (window.sameDocument = true));
    await contrast(stage);
    await row(page, "campus-a", "gpt-sim").and(page.locator('[data-state="cooling"]')).waitFor();
    assert.equal(await state(page, "campus-c", "every model"), "rejected");
    assert.match(await row(page, "campus-a", "gpt-sim").innerText(), /cooling, \d+ s left/);
    assert.match(await row(page, "campus-b", "gpt-sim").innerText(), /0 refused, \d+ admitted/);
    assert.match(await said(page).innerText(), /campus-. with .*: (cooling|rejected)/);
    const allowance = page.locator(".allowance").first();
    assert.match(await allowance.innerText(), /Codex, shorter window of 5 h: +17 % left; begins anew in 90 min/);
    assert.equal(await page.evaluate(() => window.sameDocument), true, "the page was not loaded anew");
    assert.deepEqual(troubles, []);
  },

  async "the latest refusals say their shape and what followed"(stage) {
    await contrast(stage);
    const { page, troubles } = await stage.open();
    const rows = page.getByRole("table", { name: /newest first/ }).getByRole("row");
    const text = await rows.filter({ hasText: "inside a 200 stream" }).first().innerText();
    assert.match(text, /\d\d:\d\d:\d\d/);
    assert.match(text, /campus-a[^]*gpt-sim[^]*capacity, inside a 200 stream: server_is_overloaded[^]*campus-b was asked/);
    assert.deepEqual(troubles, []);
  },

  async "the sentence is taken apart by what is the case"(stage) {
    await contrast(stage);
    const { page, troubles } = await stage.open();
    assert.match(await page.locator("#full").innerText(), /^No:/);
    assert.match(await page.locator("#streams").innerText(), /^Yes: \d+ of the latest \d+ refusals/);
    assert.match(await page.locator("#refused").innerText(), /campus-a with gpt-sim \(cooling, \d+ s left\)/);
    for (let n = 0; n < 4; n++) assert.equal(await stage.ask("gpt-full"), 503);
    await page.locator("#full", { hasText: "Yes: every credential that was asked refuses gpt-full" }).waitFor();
    assert.deepEqual(troubles, []);
  },

  async "orders are carried out with the token, and only with it"(stage) {
    await contrast(stage);
    const { page, troubles } = await stage.open();
    await page.locator("#to-campus-b").click();
    const form = page.locator("#order");
    assert.equal(await form.locator("[name=credential]").inputValue(), "campus-b");
    await form.getByRole("button", { name: "Drain" }).click();
    assert.equal(await said(page).innerText(), "Enter the token first.");
    await form.getByLabel("Token").fill("wrong");
    await form.getByRole("button", { name: "Drain" }).click();
    await page.locator("#said", { hasText: "Not done: send admin.token" }).waitFor();
    assert.equal(await state(page, "campus-b"), "ready");
    // The browser's own line about the 401.
    assert.equal(troubles.length, 1);
    assert.match(troubles.pop(), /401/);

    await form.getByLabel("Token").fill(TOKEN);
    const orders = [
      ["Drain", "every model", "drained"],
      ["Enable", "gpt-sim", "ready"],
    ];
    for (const [button, model, expected] of orders) {
      await form.getByRole("button", { name: button }).click();
      await page.locator("#said", { hasText: `Done: ${button.toLowerCase()} campus-b` }).waitFor();
      assert.equal(await state(page, "campus-b", model), expected);
    }
    await form.getByLabel("with model").fill("gpt-sim");
    await form.getByLabel("for").selectOption("30m");
    await form.getByRole("button", { name: "Hold out" }).click();
    await row(page, "campus-b", "gpt-sim").and(page.locator('[data-state="held_out"]')).waitFor();
    assert.match(await row(page, "campus-b", "gpt-sim").innerText(), /held out, (29|30) min left/);
    await form.getByRole("button", { name: "Reset" }).click();
    await page.locator("#said", { hasText: "Done: reset campus-b" }).waitFor();
    assert.deepEqual(troubles, []);
  },

  async "a page of another origin can order nothing"(stage) {
    await stage.reset();
    const { page, context } = await stage.open();
    const target = `${stage.url}credentials/campus-b/drain`;
    const answered = [];
    context.on("response", (it) => it.url() === target && answered.push(it.status()));
    const lure = createServer((_, answer) => {
      answer.setHeader("content-type", "text/html");
      answer.end(`<form method="post" action="${target}"><button>Win</button></form>`);
    });
    const port = await freePort();
    await new Promise((listening) => lure.listen(port, "127.0.0.1", listening));
    try {
      await page.goto(`http://127.0.0.1:${port}/`);
      await page.evaluate(async (url) => {
        await fetch(url, { method: "POST", mode: "no-cors", credentials: "include" }).catch(() => {});
        const headers = { authorization: "Bearer x" };
        await fetch(url, { method: "POST", headers }).catch(() => {});
      }, target);
      await page.getByRole("button").click();
      await within(5_000, "the form was answered", () => answered.length >= 2);
    } finally {
      lure.close();
    }
    assert.ok(answered.every((status) => status === 401 || status === 403), `${answered}`);
    const { credentials } = await stage.status();
    assert.equal(credentials.find((it) => it.id === "campus-b").state, "ready");
  },

  async "renewal leaves focus, typing and what is opened alone"(stage) {
    const { page, troubles } = await stage.open();
    await page.locator("#states summary").click();
    await page.locator("#order [name=model]").fill("half a na");
    await page.locator("#to-campus-b").focus();
    const renewed = page.waitForResponse((it) => it.url() === stage.url);
    await renewed;
    await page.locator("#when", { hasText: "as of" }).waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), "to-campus-b");
    assert.equal(await page.locator("#states").getAttribute("open"), "");
    assert.equal(await page.locator("#order [name=model]").inputValue(), "half a na");
    await page.getByRole("button", { name: "Pause" }).click();
    assert.equal(await page.locator("#when").innerText(), "paused");
    assert.deepEqual(troubles, []);
  },

  async "without JavaScript everything is there but the form"(stage) {
    await contrast(stage);
    const { page, troubles } = await stage.open({ javaScriptEnabled: false });
    assert.equal(await state(page, "campus-a"), "cooling");
    assert.match(await page.locator("#streams").innerText(), /^Yes:/);
    assert.ok(await page.locator("svg.chart").first().isVisible());
    assert.ok(await page.locator("#order").isHidden());
    assert.ok(await page.locator("#pause").isHidden());
    await page.locator("#shell summary").click();
    assert.match(await page.locator("#shell pre").innerText(), /^curl -X POST -H "authorization: Bearer/);
    await stage.operate("POST", "credentials/campus-b/drain");
    await page.getByRole("link", { name: "Reload" }).click();
    assert.equal(await state(page, "campus-b", "every model"), "drained");
    await stage.reset();
    assert.deepEqual(troubles, []);
  },

  async "a keyboard is enough"(stage) {
    await stage.reset();
    const { page, troubles } = await stage.open();
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the state");
    assert.ok(await page.locator(".skip").isVisible());
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "live");
    await page.locator("#order [name=token]").focus();
    await page.keyboard.type(TOKEN);
    await page.keyboard.press("Tab");
    await page.keyboard.type("campus-b");
    await page.keyboard.press("Tab");
    assert.match(await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle), /solid/);
    await page.keyboard.press("Enter");
    await page.locator("#said", { hasText: "Done: drain campus-b" }).waitFor();
    await stage.reset();
    assert.deepEqual(troubles, []);
  },

  async "a phone shows cards that are still a table to a screen reader"(stage) {
    await contrast(stage);
    const { page, troubles } = await stage.open({ viewport: { width: 360, height: 740 } });
    const wide = await page.evaluate(() => document.scrollingElement.scrollWidth);
    assert.ok(wide <= 360, `${wide} pixels wide`);
    const table = page.getByRole("table", { name: /By credential and model/ });
    const cells = table.getByRole("row", { name: /campus|gpt-sim/ });
    assert.ok((await cells.count()) >= 5);
    assert.ok((await table.getByRole("rowheader").count()) >= 6);
    assert.equal(await table.getByRole("columnheader").count(), 5);
    await table.getByRole("img", { name: /most refused in 60 s: \d/ }).first().waitFor();
    assert.deepEqual(troubles, []);
  },

  async "a hostile name stays text, and no secret is on the page"(stage) {
    await stage.reset();
    const name = "<img/src=x/onerror=alert(1)>";
    assert.equal(await stage.ask(name), 200);
    const { page, troubles } = await stage.open();
    await row(page, "campus-b", name).waitFor();
    assert.equal(await page.locator("#live img").count(), 0);
    const texts = [await page.content(), JSON.stringify(await stage.status())];
    for (const text of texts) {
      for (const secret of [...SECRETS, TOKEN]) assert.ok(!text.includes(secret), secret);
    }
    assert.deepEqual(troubles, []);
  },

  async "nobody reads without the token"(stage) {
    const { page } = await stage.open({ httpCredentials: undefined }).catch(() => ({}));
    assert.equal(page, undefined, "the browser is asked for a password");
    for (const authorization of ["", "Bearer x", `Basic ${btoa("operator:x")}`]) {
      const answer = await fetch(stage.url, { headers: { authorization } });
      assert.equal(answer.status, 401);
      assert.match(answer.headers.get("www-authenticate"), /^Basic realm="berth"/);
    }
  },
};

// Accessibility, in every colour and on every screen.
const screens = { wide: [1280, 900], tablet: [768, 1024], phone: [360, 740] };
for (const colorScheme of ["light", "dark"]) {
  for (const [screen, [width, height]] of Object.entries(screens)) {
    promises[`axe finds nothing: ${colorScheme}, ${screen}`] = async (stage) => {
      await contrast(stage);
      for (let n = 0; n < 4; n++) await stage.ask("gpt-full");
      const { page } = await stage.open({ colorScheme, viewport: { width, height }, bypassCSP: true });
      for (const details of await page.locator("summary").all()) await details.click();
      await page.evaluate(read(AXE));
      const found = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
      const words = found.violations.map((it) => `${it.id}: ${it.nodes.map((node) => node.html).join(" | ")}`);
      assert.deepEqual(words, []);
      assert.ok(found.passes.length > 20, `${found.passes.length} rules were tried`);
    };
  }
}

// The images of the documents.
export async function picture(stage) {
  await contrast(stage);
  for (let n = 0; n < 9; n++) await stage.ask("gpt-sim-mini", `s-${n % 4}`);
  const sizes = { wide: [1100, 720, "light"], tablet: [720, 720, "dark"], phone: [360, 640, "light"] };
  for (const [name, [width, height, colorScheme]] of Object.entries(sizes)) {
    const { page } = await stage.open({ colorScheme, viewport: { width, height } });
    await page.getByRole("button", { name: "Pause" }).click();
    await page.screenshot({ path: join(process.env.IMAGES, `status-${name}.png`) });
  }
}
