// Browsers start no worker for a page opened from a file. Search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${new URL(address, location)}"></script>`;
      this.inside = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          frame.contentWindow.postMessage = (data) => this.deliver(this, data);
          resolve(frame.contentWindow);
        });
      });
      document.body.append(frame);
    }

    deliver(target, data) {
      target.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      this.inside.then((frame) => this.deliver(frame, data));
    }
  };
}
