// Every reader of files from elsewhere, given any bytes: it accepts them, and what it made of them
// is sound, or it refuses them with an error that its header promises and that prints as one short
// line.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp {

enum class Verdict : uint8_t { kAccepted, kRefused };

// A reader did something else.
class Finding : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Errors: Finding with `otherwise` if not `sound`.
void demand(bool sound, const std::string& otherwise);

struct ByteReader {
  std::string_view name;
  // Errors: Finding, and whatever else the reader throws against its promise.
  Verdict (*read)(std::string_view bytes);
  // What it may hold at once: `bytes_a_byte` times the size of its input, and 16 MiB.
  int64_t bytes_a_byte;
};

// safetensors, header, index, config, json, squad, vocabulary, tokenizer.
std::span<const ByteReader> byte_readers();
// Requires one of these names.
const ByteReader& byte_reader(std::string_view name);

// The line that the last refusal would print.
const std::string& last_refusal();

}  // namespace fsdp
