"""Routes of queues, which all tenants share: look into them, pause and resume them, see to dead letters."""

ROUTES = ()
