// Formatting of numbers and times.

const INTEGER = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const DATE = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", day: "numeric", month: "short", year: "numeric" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", hour: "2-digit", minute: "2-digit" });
const YEAR = 365 * 86400;
const NARROW_SPACE = "\u202f";

export const integer = (number) => INTEGER.format(number);
export const plural = (number, singular) => `${integer(number)} ${singular}${number === 1 ? "" : "s"}`;
export const percent = (share) => `${Math.round(100 * share)}${NARROW_SPACE}%`;
export const fixed = (number, digits) => number.toFixed(digits).replace("-", "−");

/** At most three significant digits. */
export function significant(number) {
  if (Math.abs(number) >= 1000) return integer(number);
  return String(Number(number.toPrecision(3))).replace("-", "−");
}

/** Date of a time in seconds; a log whose times do not start in 1970 gets day numbers. */
export function date(seconds) {
  return seconds < YEAR ? `day ${integer(Math.floor(seconds / 86400))}` : DATE.format(1000 * seconds);
}
export const clock = (seconds) => CLOCK.format(1000 * seconds);
export const dateTime = (seconds) => `${date(seconds)}, ${clock(seconds)}`;
export const exactTime = (seconds) => (seconds < YEAR ? `${seconds} s` : new Date(1000 * seconds).toISOString());

/** Error messages of the service start in lower case, as on the command line. */
export const capitalize = (text) => text.charAt(0).toUpperCase() + text.slice(1);
