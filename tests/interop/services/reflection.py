"""reflection.py ADDRESS JOB NAME: asks a controller for its services and for one job, knowing only its address."""
import sys

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

address, job, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
channel = grpc.insecure_channel(address)

services = ProtoReflectionDescriptorDatabase(channel)
names = services.get_services()
print(*names)
assert {"heddle.v1.Control", "heddle.v1.Fleet", "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection"} <= set(names), names

# every type of every service can be built from what reflection gives
pool = descriptor_pool.DescriptorPool(services)
for service in names:
    for method in pool.FindServiceByName(service).methods:
        message_factory.GetMessageClass(method.input_type)
        message_factory.GetMessageClass(method.output_type)

method = pool.FindServiceByName("heddle.v1.Control").FindMethodByName("ListJobs")
request = message_factory.GetMessageClass(method.input_type)
response = message_factory.GetMessageClass(method.output_type)
call = channel.unary_unary("/heddle.v1.Control/ListJobs", request.SerializeToString, response.FromString)
jobs = call(request(), timeout=10).jobs
print(jobs)
assert [(j.job, j.name) for j in jobs] == [(job, name)], jobs

health = health_pb2_grpc.HealthStub(channel)
for service in ["", *names]:
    assert health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status == 1, service
try:
    health.Check(health_pb2.HealthCheckRequest(service="heddle.v1.Nobody"), timeout=10)
    sys.exit("an unknown service has health")
except grpc.RpcError as e:
    assert e.code() == grpc.StatusCode.NOT_FOUND, e
