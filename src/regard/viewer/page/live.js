// Typed input: one request to the server that gave this page, and the records of its answer.

function startLive() {
  $("live").hidden = false;
  const names = page.models.map((name, i) => [i, name]);
  $("model").parentNode.hidden = names.length < 2;
  $("against").parentNode.hidden = names.length < 2;
  options($("model"), names, 0);
  options($("against"), [["", "no other model"], ...names], "");
  $("live").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      ask();
    }
  });
}

async function answerOf(text, model) {
  let response;
  try {
    response = await fetch("attention", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ text, model }) });
  } catch {
    throw new Error("The server does not answer.");
  }
  const values = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(`${response.status}: ${typeof values.error === "string" ? values.error : response.statusText || "the server refused"}`);
  if (!Array.isArray(values.records) || !values.records.length) throw new Error("The answer holds nothing to look at.");
  return values.records;
}

let asking = false;

async function ask() {
  const text = $("text").value;
  if (!text.trim() || asking) return;
  const models = [...new Set([$("model").value, $("against").value].filter((value) => value !== "").map(Number))];
  asking = true;
  $("ask").disabled = true;
  $("live-error").textContent = "";
  $("live").setAttribute("aria-busy", "true");
  try {
    const answers = [];
    for (const model of models) answers.push(...(await answerOf(text, model)));
    records.unshift(...answers);
    state.other.chosen = false;
    $("search").value = "";
    showShelf();
    open();
    choose(0);
  } catch (error) {
    $("live-error").textContent = error.message;
  } finally {
    asking = false;
    $("ask").disabled = false;
    $("live").setAttribute("aria-busy", "false");
  }
}
