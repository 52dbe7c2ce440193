// The server's state, from /metrics.

const element = (id) => document.getElementById(id);
const before = { tokens: null, time: 0 };

// Sum of a metric over its labels.
function metric(text, name) {
  let sum = null;
  for (const line of text.split("\n")) {
    if (line.startsWith(`${name}{`) || line.startsWith(`${name} `)) {
      sum = (sum ?? 0) + Number(line.slice(line.lastIndexOf(" ")));
    }
  }
  return sum;
}

export async function showFigures() {
  if (document.hidden) return;
  try {
    const answer = await fetch("metrics");
    if (!answer.ok) throw new Error(answer.statusText);
    const text = await answer.text();
    const tokens = metric(text, "vllm:generation_tokens_total");
    const now = performance.now();
    if (before.tokens !== null) {
      const speed = Math.max(0, (tokens - before.tokens) / ((now - before.time) / 1000));
      element("speed").textContent = speed.toFixed(speed < 10 ? 1 : 0);
    }
    before.tokens = tokens;
    before.time = now;
    element("running").textContent = metric(text, "vllm:num_requests_running");
    element("waiting").textContent = metric(text, "vllm:num_requests_waiting");
    const used = metric(text, "vllm:kv_cache_usage_perc");
    element("cache").value = used;
    element("cache-text").textContent = `${(100 * used).toFixed(1)} %`;
  } catch {
    before.tokens = null;
    for (const id of ["speed", "running", "waiting", "cache-text"]) element(id).textContent = "–";
  }
}
