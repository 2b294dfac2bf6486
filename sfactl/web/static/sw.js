// Shows notifications on telephones, where only a service worker may. It keeps nothing: pages always come from the console.
self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const path = event.notification.data || "/";
  event.waitUntil(
    self.clients.matchAll({ type: "window" }).then((open) => {
      const one = open.find((each) => new URL(each.url).pathname === path);
      return one ? one.focus() : self.clients.openWindow(path);
    }),
  );
});
