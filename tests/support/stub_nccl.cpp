// A libnccl.so.2 with NCCL's names and no function: for tests of the look-up, and of the settings
// at the first call.
#include <cstdlib>

namespace {

int version_told = 0;
const char* order_at_call = nullptr;

}  // namespace

extern "C" {

void stub_nccl_set_version(int version) { version_told = version; }
// Returns NCCL_LAUNCH_ORDER_IMPLICIT at the last query of the version; null: not set.
const char* stub_nccl_order() { return order_at_call; }

int ncclGetVersion(int* version) {
  order_at_call = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  *version = version_told;
  return 0;
}

// The look-up needs these names; nothing calls them.
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
