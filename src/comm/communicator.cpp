#include "comm/communicator.h"

#include "comm/ranks_view.h"

namespace fsdp {

RanksView Communicator::map_ranks(const void*, int64_t) { return {}; }

}  // namespace fsdp
