// Calls the Node SDK as its standard input says, and prints what it made of the answers: calls.py's twin.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const OpenAI = createRequire(process.env.NODE_DIR + "/package.json")("openai").default;

const SAY = "Say hello.";
const TEXT = [{ role: "user", content: SAY }];

const APIS = {
  async responses(client, model, seen) {
    const answer = await client.responses.create({ model, input: SAY });
    seen.text = answer.output_text;
    seen.complete = answer.status === "completed";
    seen.usage = answer.usage.total_tokens;
  },
  async "responses stream"(client, model, seen) {
    for await (const event of await client.responses.create({ model, input: SAY, stream: true })) {
      responsesEvent(event, seen);
    }
  },
  async "responses helper"(client, model, seen) {
    const events = client.responses.stream({ model, input: SAY });
    for await (const event of events) responsesEvent(event, seen);
    const answer = await events.finalResponse();
    if (answer.output_text !== seen.text) throw new Error("the final text is another: " + answer.output_text);
  },
  async chat(client, model, seen) {
    const answer = await client.chat.completions.create({ model, messages: TEXT });
    seen.text = answer.choices[0].message.content;
    seen.complete = answer.choices[0].finish_reason === "stop";
    seen.usage = answer.usage.total_tokens;
  },
  async "chat stream"(client, model, seen) {
    const options = { model, messages: TEXT, stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create(options)) {
      for (const choice of chunk.choices) {
        seen.text += choice.delta.content ?? "";
        seen.complete ||= choice.finish_reason === "stop";
      }
      if (chunk.usage) seen.usage = chunk.usage.total_tokens;
    }
  },
  async models(client, model, seen) {
    const names = [];
    for await (const one of client.models.list()) names.push(one.id);
    seen.text = names.join(" ");
    seen.complete = true;
  },
};

function responsesEvent(event, seen) {
  seen.last = event.type;
  if (event.type === "response.output_text.delta") seen.text += event.delta;
  if (event.type === "response.failed") seen.code = event.response.error.code;
  if (event.type === "response.completed") {
    seen.complete = true;
    seen.usage = event.response.usage.total_tokens;
  }
}

function classes(error) {
  const names = [];
  for (let kind = error?.constructor; kind?.name; kind = Object.getPrototypeOf(kind)) names.push(kind.name);
  return names;
}

async function call(task) {
  const seen = { id: task.id, text: "", complete: false, usage: null, error: null };
  try {
    const options = { apiKey: "sk-client", baseURL: task.base, maxRetries: task.retries, timeout: 30000 };
    await APIS[task.api](new OpenAI(options), task.model, seen);
  } catch (error) {
    seen.error = {
      classes: classes(error),
      status: error.status ?? null,
      retry_after: error.headers?.get?.("retry-after") ?? null,
      text: String(error).slice(0, 300),
    };
  }
  console.log(JSON.stringify(seen));
}

const tasks = JSON.parse(readFileSync(0, "utf8"));
const next = tasks.values();
await Promise.all(Array.from({ length: 4 }, async () => {
  for (const task of next) await call(task);
}));
