#include "comm/store/key_value_store.h"

namespace fsdp {

OpenStore& store_opener() {
  static OpenStore opener = nullptr;
  return opener;
}

}  // namespace fsdp
