"""watcher.py ADDRESS: prints what health says of heddle.v1.Control until the stream ends."""
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(sys.argv[1]))
for answer in stub.Watch(health_pb2.HealthCheckRequest(service="heddle.v1.Control"), timeout=60):
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status), flush=True)
