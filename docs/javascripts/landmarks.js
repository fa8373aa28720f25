// The theme puts each button that copies a block of code into a landmark without a name.
new MutationObserver(() => {
  document
    .querySelectorAll("nav.md-code__nav:not([aria-label])")
    .forEach((one) => one.setAttribute("aria-label", one.firstChild.dataset.clipboardTarget));
}).observe(document.body, { childList: true, subtree: true });
