#include "fsdp/error.h"

#include <fmt/format.h>

#include <array>

#include "fsdp/program_text.h"

namespace fsdp {
namespace {

std::string compose(const ErrorText& text) {
  std::string line = text.what;
  if (!text.where.empty()) line += fmt::format(" ({})", text.where);
  if (!text.cause.empty()) line += fmt::format("; {}", text.cause);
  if (!text.hint.empty()) line += fmt::format("; hint: {}", text.hint);
  return line;
}

// Escapes line breaks. An error must be one line, because tools recognise an error line by its
// first characters.
std::string on_one_line(std::string_view text) {
  std::string line = printable(text, "\n");
  for (size_t at = 0; (at = line.find('\n', at)) != std::string::npos;) line.replace(at, 1, "\\n");
  return line;
}

std::string line(std::string_view kind, const ErrorPlace& place, std::string_view text) {
  const std::string step = place.step >= 0 ? fmt::format(" step {}", place.step) : "";
  return fmt::format("fsdp: {} rank {}/{} host {}{}: {}", kind, place.rank, place.world_size,
                     place.host, step, on_one_line(text));
}

// The texts with which the stack trace in a LibTorch exception begins: in LibTorch's own
// exceptions, and in those of checks in c10's CPU allocator.
constexpr std::array<std::string_view, 2> kStackMarkers{"Exception raised from ", "frame #0: "};

std::string error_kind(ExitCode code) { return fmt::format("error[{}]", static_cast<int>(code)); }

}  // namespace

Error::Error(ExitCode code, ErrorText text)
    : std::runtime_error(compose(text)), code_(code), text_(std::move(text)) {}

std::string error_line(const Error& error, const ErrorPlace& place) {
  return line(error_kind(error.code()), place, error.what());
}

std::string error_line(const std::exception& error, const ErrorPlace& place) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return error_line(*ours, place);
  return line(error_kind(ExitCode::kInternal), place, message_of(error));
}

std::string_view message_of(const std::exception& error) {
  std::string_view text = error.what();
  for (const std::string_view stack : kStackMarkers) {
    size_t marker = text.find(stack);
    // If the text of a marker occurs within a line, it is part of the message and no stack trace
    // begins there.
    while (marker != std::string_view::npos && marker > 0 && text[marker - 1] != '\n') {
      marker = text.find(stack, marker + 1);
    }
    text = text.substr(0, marker);
  }
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return text;
}

std::string warning_line(const ErrorText& text, const ErrorPlace& place) {
  return line("warning", place, compose(text));
}

std::string note_line(const ErrorText& text) {
  return fmt::format("fsdp: note: {}", on_one_line(compose(text)));
}

ExitCode exit_code_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr ? ours->code() : ExitCode::kInternal;
}

}  // namespace fsdp
