"""Environment variables that Kubernetes sets in every container of a namespace."""


def service_variables(service: str, port: int = 80, ip: str = "10.0.0.7") -> dict[str, str]:
    """Return the variables for a Service with one port called `http`."""
    name = service.upper().replace("-", "_")
    url = f"tcp://{ip}:{port}"
    return {
        f"{name}_SERVICE_HOST": ip,
        f"{name}_SERVICE_PORT": str(port),
        f"{name}_SERVICE_PORT_HTTP": str(port),
        f"{name}_PORT": url,
        f"{name}_PORT_{port}_TCP": url,
        f"{name}_PORT_{port}_TCP_PROTO": "tcp",
        f"{name}_PORT_{port}_TCP_PORT": str(port),
        f"{name}_PORT_{port}_TCP_ADDR": ip,
    }
