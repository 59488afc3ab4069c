// A libnccl.so.2 with NCCL's function names. Its functions do nothing. Tests use it to check the
// look-up of the library, and the settings at the first call.
#include <cstdlib>

namespace {

int version_told = 0;
const char* order_at_call = nullptr;

}  // namespace

extern "C" {

void stub_nccl_set_version(int version) { version_told = version; }
// Returns the value of NCCL_LAUNCH_ORDER_IMPLICIT when the version was last queried, or null if it
// was not set.
const char* stub_nccl_order() { return order_at_call; }

int ncclGetVersion(int* version) {
  order_at_call = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  *version = version_told;
  return 0;
}

// The look-up needs these names, but nothing calls the functions.
int ncclGetUniqueId() { return 0; }
int ncclCommInitRankConfig() { return 0; }
int ncclCommSplit() { return 0; }
int ncclCommFinalize() { return 0; }
int ncclCommDestroy() { return 0; }
int ncclCommAbort() { return 0; }
int ncclCommGetAsyncError() { return 0; }
const char* ncclGetErrorString() { return ""; }
const char* ncclGetLastError() { return ""; }
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
int ncclAllGather() { return 0; }
int ncclReduceScatter() { return 0; }
int ncclAllReduce() { return 0; }
int ncclBroadcast() { return 0; }
}
