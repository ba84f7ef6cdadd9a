"""Made out of job.proto by `make proto`; do not edit."""

from base64 import b64decode

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.timestamp_pb2 import Timestamp

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(
    b64decode(
        "CiVzY2hlZHVsZXIvZGlhbGVjdHMvY29udmV5b3Ivam9iLnByb3RvEhJzY2hlZHVsZXIuY29udmV5b3IaH2dvb2dsZS9wcm90b2J1"
        "Zi90aW1lc3RhbXAucHJvdG8isggKA0pvYhISCgR1dWlkGAEgASgJUgR1dWlkEhIKBHR5cGUYAiABKAlSBHR5cGUSFAoFcXVldWUY"
        "AyABKAlSBXF1ZXVlEhgKB3BheWxvYWQYBCABKAxSB3BheWxvYWQSMQoGcnVuX2F0GAUgASgLMhouZ29vZ2xlLnByb3RvYnVmLlRp"
        "bWVzdGFtcFIFcnVuQXQSHwoLcGFyZW50X3V1aWQYBiABKAlSCnBhcmVudFV1aWQSKQoQcHJlZGVjZXNzb3JfdXVpZBgHIAEoCVIP"
        "cHJlZGVjZXNzb3JVdWlkEjkKCnN0YXJ0ZWRfYXQYCCABKAsyGi5nb29nbGUucHJvdG9idWYuVGltZXN0YW1wUglzdGFydGVkQXQS"
        "FAoFcmV0cnkYCSABKAVSBXJldHJ5Eh8KC21heF9yZXRyaWVzGAogASgFUgptYXhSZXRyaWVzEiEKDGxhc3RfZmFpbHVyZRgLIAEo"
        "CVILbGFzdEZhaWx1cmUSNQoGc3RhdHVzGAwgASgOMh0uc2NoZWR1bGVyLmNvbnZleW9yLkpvYlN0YXR1c1IGc3RhdHVzEhMKBGZl"
        "ZWQY6AcgASgDUgRmZWVkEiAKCHByaW9yaXR5GOkHIAEoBUgAUghwcmlvcml0eYgBARIjCgxpbnN0YWxsYXRpb24Y6gcgASgJUgxp"
        "bnN0YWxsYXRpb24SFwoGdGVuYW50GOsHIAEoCVIGdGVuYW50EhMKBGpzb24Y7AcgASgIUgRqc29uEjoKCmNyZWF0ZWRfYXQY7Qcg"
        "ASgLMhouZ29vZ2xlLnByb3RvYnVmLlRpbWVzdGFtcFIJY3JlYXRlZEF0EjoKCmV4cGlyZXNfYXQY7gcgASgLMhouZ29vZ2xlLnBy"
        "b3RvYnVmLlRpbWVzdGFtcFIJZXhwaXJlc0F0EisKDmNvcnJlbGF0aW9uX2lkGO8HIAEoCUgBUg1jb3JyZWxhdGlvbklkiAEBEhcK"
        "BnBvbGljeRjwByABKAxSBnBvbGljeRITCgR0YWdzGPEHIAEoDFIEdGFncxIfCgpjaGVja3BvaW50GPIHIAEoDFIKY2hlY2twb2lu"
        "dBIZCgdhdHRlbXB0GPMHIAEoBVIHYXR0ZW1wdBIVCgV0cmFjZRj0ByABKAlSBXRyYWNlEigKD2lkZW1wb3RlbmN5X2tleRj1ByAB"
        "KAlSDmlkZW1wb3RlbmN5S2V5Eh0KCXVuY2hhcmdlZBj2ByABKAVSCXVuY2hhcmdlZBIvChNwcmV2aW91c19hdHRlbXB0X2lkGPcH"
        "IAEoCVIRcHJldmlvdXNBdHRlbXB0SWQSPgoMc2NoZWR1bGVkX2F0GPgHIAEoCzIaLmdvb2dsZS5wcm90b2J1Zi5UaW1lc3RhbXBS"
        "C3NjaGVkdWxlZEF0QgsKCV9wcmlvcml0eUIRCg9fY29ycmVsYXRpb25faWQqTgoJSm9iU3RhdHVzEgsKB1VOS05PV04QABIMCghF"
        "TlFVRVVFRBABEgsKB1JVTk5JTkcQAhINCglDT01QTEVURUQQAxIKCgZGQUlMRUQQBGIGcHJvdG8z"
    )
)
Job = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["Job"])

__all__ = ["Job", "Timestamp"]
