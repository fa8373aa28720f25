"""What people see of the service: the dashboard and the page of a task, drawn on the server."""
