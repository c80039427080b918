# As PyTorch's cmake/EnvVarForwarding.cmake does since 2.12; a test includes it.
execute_process(COMMAND ${CMAKE_COMMAND} -E environment OUTPUT_VARIABLE all)
string(REPLACE "\n" ";" lines "${all}")
foreach(line IN LISTS lines)
  if(line MATCHES "^((BUILD_|USE_|CMAKE_)[A-Za-z_0-9]+)=(.*)" AND NOT DEFINED ${CMAKE_MATCH_1})
    set(${CMAKE_MATCH_1} "${CMAKE_MATCH_3}" CACHE STRING "From environment" FORCE)
  endif()
endforeach()
