#include "fsdp/communicator.h"

#include "runtime/buffer.h"

namespace fsdp {

Buffer Communicator::map_ranks(const void*, int64_t) { return {}; }

}  // namespace fsdp
