// A libFuzzer program for one reader: FSDP_FUZZ_READER in the namespace FSDP_FUZZ_LIBRARY. It
// counts the memory that the reader holds at once and checks a limit. If the reader breaks its
// promise, an uncaught exception ends the program.
#include <sanitizer/allocator_interface.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "bert_qa/tests/support/byte_readers.h"
#include "comm/support/store_reader.h"
#include "io/support/byte_readers.h"

namespace {

// libFuzzer's own threads allocate too, but rarely and little.
std::atomic<int64_t> g_live_bytes{0}, g_peak_bytes{0};

void on_malloc(const volatile void*, size_t size) {
  const int64_t live = g_live_bytes += static_cast<int64_t>(size);
  if (live > g_peak_bytes) g_peak_bytes = live;
}

void on_free(const volatile void* memory) {
  g_live_bytes -= static_cast<int64_t>(__sanitizer_get_allocated_size(memory));
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // Objects that are built once and kept must not count for an input, so they are built here.
  const std::string_view reader = FSDP_FUZZ_READER;
  const bool tokenizes = reader == "squad" || reader == "tokenizer";
  for (int choice = 0; tokenizes && choice < 4; ++choice) {
    bert_qa::byte_reader("tokenizer").read(std::string(1, static_cast<char>(choice)));
  }
  __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fsdp::ByteReader& reader = FSDP_FUZZ_LIBRARY::byte_reader(FSDP_FUZZ_READER);
  g_live_bytes = g_peak_bytes = 0;
  reader.read({reinterpret_cast<const char*>(data), size});
  const int64_t allowed = reader.bytes_a_byte * static_cast<int64_t>(size) + (16 << 20);
  if (g_peak_bytes > allowed) {
    throw fsdp::Finding("held " + std::to_string(g_peak_bytes) + " bytes for an input of " +
                        std::to_string(size));
  }
  return 0;
}
