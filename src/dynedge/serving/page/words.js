// Numbers and moments as people read them.

const WHOLE = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const DATE = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", day: "numeric", month: "short", year: "numeric" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", hour: "2-digit", minute: "2-digit" });
const YEAR = 365 * 86400;
const THIN = "\u202f";

export const count = (number) => WHOLE.format(number);
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;
export const percent = (share) => `${Math.round(100 * share)}${THIN}%`;
export const fixed = (number, digits) => number.toFixed(digits).replace("-", "−");

/** At most so many digits that matter: a mark on an axis, a mean. */
export function short(number) {
  if (Math.abs(number) >= 1000) return count(number);
  return String(Number(number.toPrecision(3))).replace("-", "−");
}

/** A log whose clock does not start at 1970 has no dates. */
export function day(seconds) {
  return seconds < YEAR ? `day ${count(Math.floor(seconds / 86400))}` : DATE.format(1000 * seconds);
}
export const clock = (seconds) => CLOCK.format(1000 * seconds);
export const moment = (seconds) => `${day(seconds)}, ${clock(seconds)}`;
export const exact = (seconds) => (seconds < YEAR ? `${seconds} s` : new Date(1000 * seconds).toISOString());

/** The server's sentences begin small, as those of the command line do. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
