# usage: cmake -D BUILD_OF=TEXT -D FILES=… -D OUTPUT=FILE -P cuda_build_header.cmake
# Writes the header with kFsdpCudaBuild: TEXT and a hash of the content of FILES.
cmake_minimum_required(VERSION 3.25)
set(hashes)
foreach(file IN LISTS FILES)
  file(SHA256 ${file} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 16 hash)
string(STRIP "${BUILD_OF}" BUILD_OF)
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"// Which build of the library this is. Written by cmake/cuda_build_header.cmake.
#pragma once

namespace fsdp {

inline constexpr char kFsdpCudaBuild[] = \"@BUILD_OF@ @hash@\";

}  // namespace fsdp
")
