/**
 * What args, results and events say, in a few words for a person. Pure: values in, text out.
 */

const LONGEST = 160;

/** @param {number} ms */
export function seconds(ms) {
  return `${(ms / 1000).toFixed(1)} s`;
}

/** A step in a line. @param {{tool: string, args?: Record<string, any>}} step */
export function toolAndArgs({ tool, args = {} }) {
  return `${tool} ${argWords(tool, args)}`.trim();
}

/** @param {string} tool @param {Record<string, any>} args @returns {string} */
export function argWords(tool, args) {
  if (tool === "gpio.set") return `${args.line} = ${args.value}`;
  if (tool === "gpio.pulse") return `${args.line} = ${args.value} for ${seconds(args.duration_ms)}`;
  return pairs(tool, args);
}

/** @param {string} tool @param {Record<string, any>} result @returns {string} */
export function resultWords(tool, result) {
  switch (tool) {
    case "hw.sensor.read":
      return `${Math.round(result.value * 100) / 100} ${result.unit === "celsius" ? "°C" : result.unit}`;
    case "i2c.scan":
      return Array.isArray(result.hex) && result.hex.length ? `found ${result.hex.join(", ")}` : "nobody there";
    case "gpio.get":
    case "gpio.set":
      return `${result.line} is ${result.value}`;
    case "gpio.pulse":
      return result.restored ? `${result.line} is back to what it was` : `${result.line} was set by somebody else`;
    case "gpio.watch": {
      const count = Array.isArray(result.edges) ? result.edges.length : 0;
      return `${count} ${count === 1 ? "edge" : "edges"}${result.timed_out ? ", then the time was over" : ""}`;
    }
    case "i2c.read":
    case "uart.read":
    case "uart.exchange":
      return `${bytesWords(String(result.data))}${result.timed_out ? ", then the time was over" : ""}`;
    default:
      return pairs(tool, result);
  }
}

/** What a progress event reports. @param {Record<string, any>} data */
export function progressWords(data) {
  if (data.edge === "rising" || data.edge === "falling") {
    return `line ${data.line} ${data.edge === "rising" ? "rises" : "falls"} to ${data.value}`;
  }
  return pairs("", data);
}

/** What an event says beyond its phase. @param {import("./hacp.js").TaskEvent} event @param {string} tool */
export function eventWords(event, tool) {
  switch (event.phase) {
    case "start":
      return tool;
    case "progress":
      if (event.rolled_back !== undefined) return `${tool} ${event.rolled_back ? "is" : "could not be"} taken back`;
      return progressWords(event.data ?? {});
    case "finish":
      return `${tool}: ${event.error ?? (event.result ? resultWords(tool, event.result) : event.status)}`;
    default:
      return [event.status, event.error ?? event.reason].filter(Boolean).join(": ");
  }
}

/** @param {string} tool @param {Record<string, any>} values */
function pairs(tool, values) {
  const binary = tool.startsWith("i2c.") || tool.startsWith("uart.");
  const parts = Object.entries(values).map(([name, value]) => {
    if (binary && name === "data" && typeof value === "string") return `${name} ${bytesWords(value)}`;
    if (name === "timeout_ms" && typeof value === "number") return `for at most ${seconds(value)}`;
    return `${name} ${typeof value === "string" ? shown(value) : JSON.stringify(value)}`;
  });
  const all = parts.join(", ");
  return all.length > LONGEST ? `${all.slice(0, LONGEST - 1)}…` : all;
}

/** Control characters as escapes, so that they can be seen. @param {string} text */
function shown(text) {
  return /[\x00-\x1f\x7f]/.test(text) ? JSON.stringify(text) : text;
}

/** base64 as the bytes it stands for: letters if they all are, else hexadecimal. @param {string} base64 */
function bytesWords(base64) {
  let bytes;
  try {
    bytes = Array.from(atob(base64), (character) => character.charCodeAt(0));
  } catch {
    return base64;
  }
  const isText = bytes.length > 2 && bytes.every((byte) => byte === 10 || byte === 13 || (byte > 31 && byte < 127));
  if (isText) return JSON.stringify(String.fromCharCode(...bytes));
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}
