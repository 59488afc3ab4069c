// Runs this project's side of benchmarks/tokenizer: tokenizes the texts of a file and prints times.
//
// usage: tokenizer_probe VOCABULARY TEXTS LOWER STRIP   (LOWER and STRIP are 0 or 1)
//
// TEXTS holds for each text its size as a little-endian int32, followed by its bytes. Standard
// input has a command on each line. "tokens FILE" writes for each text the number of tokens, and
// then the id, begin and end of each token as int32. "tokenize N", "copy N" and "look N" process
// all texts N times and print the seconds. They measure tokenizing, memcpy, and one table look-up
// per byte.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "bert_qa/hf/tokenizer_folder.h"
#include "bert_qa/text/wordpiece_tokenizer.h"
#include "fsdp/error.h"
#include "io/mapped_file.h"

namespace {

using Texts = std::vector<std::string_view>;

Texts texts_of(std::string_view file) {
  Texts texts;
  while (!file.empty()) {
    int32_t size = 0;
    std::memcpy(&size, file.data(), sizeof size);
    texts.push_back(file.substr(sizeof size, size));
    file.remove_prefix(sizeof size + size);
  }
  return texts;
}

void write_tokens(const bert_qa::WordPieceTokenizer& tokenizer, const Texts& texts,
                  const std::string& path) {
  std::vector<int32_t> values;
  bert_qa::TokenList tokens;
  for (const std::string_view text : texts) {
    tokenizer.tokenize(text, tokens);
    values.push_back(static_cast<int32_t>(tokens.size()));
    for (int64_t i = 0; i < tokens.size(); ++i) {
      values.insert(values.end(), {tokens.ids[i], tokens.spans[i].begin, tokens.spans[i].end});
    }
  }
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(int32_t)));
  file.close();
  if (!file) {
    throw fsdp::IoError(fsdp::ExitCode::kIoError,
                        {.what = "the tokens cannot be written", .where = path});
  }
}

template <class Pass>
double seconds_of(int passes, Pass&& pass) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < passes; ++i) pass();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The results of all passes. They are kept so that the compiler does not remove a pass.
struct Work {
  bert_qa::TokenList tokens;
  std::vector<char> copy;
  std::array<uint8_t, 256> table{};
  uint64_t sum = 0;
  int64_t token_count = 0;
};

double run(const std::string& what, int passes, const bert_qa::WordPieceTokenizer& tokenizer,
           const Texts& texts, Work& work) {
  if (what == "tokenize") {
    return seconds_of(passes, [&] {
      for (const std::string_view text : texts) {
        tokenizer.tokenize(text, work.tokens);
        work.token_count += work.tokens.size();
      }
    });
  }
  if (what == "copy") {
    return seconds_of(passes, [&] {
      for (const std::string_view text : texts) {
        work.copy.resize(text.size());
        std::memcpy(work.copy.data(), text.data(), text.size());
        work.sum += static_cast<uint8_t>(work.copy.empty() ? 0 : work.copy.back());
      }
    });
  }
  if (what == "look") {
    return seconds_of(passes, [&] {
      for (const std::string_view text : texts) {
        for (const char byte : text) work.sum += work.table[static_cast<uint8_t>(byte)];
      }
    });
  }
  throw fsdp::InvalidArgument({.what = fmt::format("there is no command '{}'", what)},
                              fsdp::ExitCode::kUsage);
}

void serve(const bert_qa::WordPieceTokenizer& tokenizer, const Texts& texts) {
  Work work;
  std::iota(work.table.begin(), work.table.end(), uint8_t{0});
  std::string what, argument;
  while (std::cin >> what >> argument) {
    if (what == "tokens") {
      write_tokens(tokenizer, texts, argument);
      fmt::print("written\n");
    } else {
      fmt::print("{:.9f}\n", run(what, std::stoi(argument), tokenizer, texts, work));
    }
    std::fflush(stdout);
  }
  fmt::print(stderr, "{} tokens, checksum {}\n", work.token_count, work.sum);
}

// Returns the tokenizer of a model folder.
bert_qa::WordPieceTokenizer tokenizer_in(const char* folder) {
  std::vector<std::string> notes;
  return bert_qa::read_tokenizer(folder, notes);
}

bert_qa::WordPieceTokenizer tokenizer_of(const char* vocabulary, std::string_view lower,
                                         std::string_view strip) {
  return bert_qa::WordPieceTokenizer(
      bert_qa::WordPieceVocab::read(vocabulary),
      {.do_lower_case = lower == "1", .strip_accents = strip == "1"});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3 && argc != 5) {
      throw fsdp::InvalidArgument({.what = "two or four arguments are expected",
                                   .hint = "benchmarks/tokenizer runs this program"},
                                  fsdp::ExitCode::kUsage);
    }
    const fsdp::MappedFile file(argv[2]);
    serve(argc == 3 ? tokenizer_in(argv[1]) : tokenizer_of(argv[1], argv[3], argv[4]),
          texts_of(file.text()));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
