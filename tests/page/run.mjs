// Keeps each promise in turn; the last line counts them.

import { picture, promises } from "./promises.mjs";
import { Stage } from "./stage.mjs";

const words = process.argv.slice(2);
const wanted = Object.entries(promises).filter(([name]) => words.every((word) => name.includes(word)));
if (wanted.length === 0) throw new Error("no promise of that name");

const stage = await Stage.set();
let failed = 0;
try {
  for (const [name, keep] of wanted) {
    const began = Date.now();
    try {
      await keep(stage);
      console.log(`ok    ${name} (${Date.now() - began} ms)`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL  ${name}\n${error.stack}\n`);
    } finally {
      for (const context of stage.browser.contexts()) await context.close();
    }
  }
} finally {
  if (failed > 0) console.log(`--- the end of berth's log\n${stage.log.slice(-4_000)}`);
  await stage.strike();
}
if (process.env.UPDATE_IMAGES === "1") {
  const fresh = await Stage.set();
  await picture(fresh).finally(() => fresh.strike());
}
console.log(`${wanted.length - failed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
