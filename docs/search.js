// The search takes "-" before a word for "without it", so an option such as --host would find nothing.
document.addEventListener(
  "input",
  ({ target }) => {
    if (target.matches(".md-search__input")) target.value = target.value.replace(/(^|\s)-+/g, "$1");
  },
  true,
);
