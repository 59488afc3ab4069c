#include "comm/communicator.h"

#include "comm/ranks_view.h"
#include "fsdp/error.h"

namespace fsdp {

// By default no memory can be mapped. So this function returns an empty view on every rank, and
// callers gather instead.
RanksView Communicator::map_ranks(const void*, int64_t) { return {}; }

std::unique_ptr<Communicator> Communicator::with_windows(bool /*by_copy_engines*/) {
  throw InvalidArgument({.what = "nccl_registration is set, but these ranks do not use NCCL",
                         .where = "Options::tuning.nccl_registration",
                         .cause = "these ranks share a device, or there is only one rank",
                         .hint = "leave nccl_registration at kOff, or give each rank a GPU"});
}

}  // namespace fsdp
